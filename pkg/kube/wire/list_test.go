package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
)

// envelope is a list as an API server answers.
func envelope(t testing.TB, list runtime.ProtobufMarshaller) []byte {
	t.Helper()
	b := make([]byte, 1<<20)
	n, err := list.MarshalTo(b)
	errtest.Must(t, err)
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "NodeList"},
		Raw: b[:n], ContentType: "x"}
	out, err := u.Marshal()
	errtest.Must(t, err)
	return append([]byte("k8s\x00"), out...)
}

func nodes(n int) *corev1.NodeList {
	list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "more"}}
	for i := range n {
		list.Items = append(list.Items, *busyNode(i))
	}
	return list
}

func readNodes(r io.Reader) (got []wire.Node, meta wire.ListMeta, err error) {
	b := bufio.NewReader(r)
	if !wire.IsProtobuf(b) {
		return nil, meta, wire.ErrMalformed
	}
	meta, err = wire.ReadList(b, func(item []byte) error {
		n, err := reader.Node(item)
		got = append(got, n)
		return err
	})
	return got, meta, err
}

func TestListIsReadAsByKubernetes(t *testing.T) {
	list := nodes(5)
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(envelope(t, list)),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(envelope(t, list)))} {
		got, meta, err := readNodes(r)
		if err != nil || meta != (wire.ListMeta{ResourceVersion: "7", Continue: "more"}) ||
			len(got) != len(list.Items) {
			t.Fatalf("%s: %d nodes, %+v, %v", name, len(got), meta, err)
		}
		for i := range got {
			if d := diff(want(&list.Items[i]), got[i]); d != "" {
				t.Errorf("%s: node %d:\n%s", name, i, d)
			}
		}
	}
}

func TestErrorEndsAList(t *testing.T) {
	whole := envelope(t, nodes(2))
	stop := errors.New("stop")
	if _, err := wire.ReadList(bufio.NewReader(bytes.NewReader(whole)),
		func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of the visitor became %v", err)
	}
	broken := iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(whole)))
	if _, err := wire.ReadList(bufio.NewReader(broken),
		func([]byte) error { return nil }); !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("an error of the reader became %v", err)
	}

	// A list that is cut off must not pass for a shorter one.
	for i := range whole {
		got, _, err := readNodes(bytes.NewReader(whole[:i]))
		if err == nil && len(got) < 2 {
			t.Fatalf("cut at %d of %d: %d nodes and no error", i, len(whole), len(got))
		}
	}
}

// FuzzReadList compares with the decoders of k8s.io.
func FuzzReadList(f *testing.F) {
	f.Add(envelope(f, nodes(0)))
	small := nodes(2)
	for i := range small.Items {
		small.Items[i].Status, small.Items[i].ManagedFields = corev1.NodeStatus{}, nil
	}
	f.Add(envelope(f, small))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, meta, err := readNodes(bytes.NewReader(data))
		var u runtime.Unknown
		var theirs corev1.NodeList
		if err != nil || u.Unmarshal(data[4:]) != nil || theirs.Unmarshal(u.Raw) != nil {
			return
		}
		again, _, err := readNodes(bytes.NewReader(envelope(t, &theirs)))
		if err != nil || len(again) != len(theirs.Items) {
			t.Fatalf("what k8s.io wrote: %d of %d nodes, %v", len(again), len(theirs.Items), err)
		}
		// The decoder of k8s.io keeps the last of two contents of an envelope.
		if len(got) < len(again) {
			t.Fatalf("%d of %d nodes, %+v", len(got), len(again), meta)
		}
	})
}
