package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/kubeveil/kubeveil/pkg/cluster"
)

const protobufType = "application/vnd.kubernetes.protobuf"

// protoTypes are the kinds that the fake server has in protobuf.
var protoTypes = map[string]struct{ one, list func() runtime.Object }{
	nodesPath: {func() runtime.Object { return &corev1.Node{} },
		func() runtime.Object { return &corev1.NodeList{} }},
	podsPath: {func() runtime.Object { return &corev1.Pod{} },
		func() runtime.Object { return &corev1.PodList{} }},
	namespacesPath: {func() runtime.Object { return &corev1.Namespace{} },
		func() runtime.Object { return &corev1.NamespaceList{} }},
	networkPoliciesPath: {func() runtime.Object { return &networkingv1.NetworkPolicy{} },
		func() runtime.Object { return &networkingv1.NetworkPolicyList{} }},
	servicesPath: {func() runtime.Object { return &corev1.Service{} },
		func() runtime.Object { return &corev1.ServiceList{} }},
	allSlicesPath: slicesInProtobuf, slicesPath: slicesInProtobuf,
}

var slicesInProtobuf = struct{ one, list func() runtime.Object }{
	func() runtime.Object { return &discoveryv1.EndpointSlice{} },
	func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
}

// inProtobuf reports whether a request is answered in protobuf. It counts those.
func (f *fakeServer) inProtobuf(r *http.Request, path string) bool {
	if r.Header.Get("Accept-Encoding") != "" {
		f.t.Errorf("%s was asked for in the encoding %q", path, r.Header.Get("Accept-Encoding"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if protoTypes[path].one == nil || f.noProto ||
		!strings.HasPrefix(r.Header.Get("Accept"), protobufType) {
		return false
	}
	f.writes["protobuf "+path]++
	return true
}

// protoEncoder writes objects of protoTypes. It is made once, because most of its time is for that.
var protoEncoder = func() runtime.Encoder {
	known := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(known), discoveryv1.AddToScheme(known),
		networkingv1.AddToScheme(known)); err != nil {
		panic(err)
	}
	return protobuf.NewSerializer(known, known)
}()

// toProtobuf writes an object as the API server does, envelope and all.
func (f *fakeServer) toProtobuf(o any, into runtime.Object) []byte {
	var b bytes.Buffer
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err == nil {
		err = protoEncoder.Encode(into, &b)
	}
	if err != nil {
		f.t.Errorf("encode %s: %v", text, err)
	}
	return b.Bytes()
}

// encoder returns what writes the events of a watch, after it wrote the header.
func (f *fakeServer) encoder(w http.ResponseWriter, r *http.Request,
	path string) func(event) error {
	if !f.inProtobuf(r, path) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		enc := json.NewEncoder(w)
		return func(e event) error { return enc.Encode(e) }
	}
	w.Header().Set("Content-Type", protobufType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(w)
	return func(e event) error {
		we := metav1.WatchEvent{Type: e.Type,
			Object: runtime.RawExtension{Raw: f.toProtobuf(e.Object, protoTypes[path].one())}}
		b, err := we.Marshal()
		if err == nil {
			_, err = frames.Write(b)
		}
		return err
	}
}

// Nodes come as protobuf where the API server has it, from a streaming list and
// from a plain one, and say the same as in JSON, to the last change.
func TestNodesAreReadAsProtobuf(t *testing.T) {
	var first *cluster.State
	for _, tc := range []struct{ noProto, noStream bool }{{}, {noStream: true}, {noProto: true},
		{noProto: true, noStream: true}} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			f := newFakeServer(t)
			f.noProto, f.noStream = tc.noProto, tc.noStream
			control := node("control", 3)
			control["metadata"].(m)["labels"] = m{controlPlaneLabel: "", "other": "label"}
			f.put(nodesPath, control)
			f.put(nodesPath, node("changes", 1))
			f.put(nodesPath, node("goes", 2))
			bare := m{"metadata": m{"name": "bare"}, "spec": m{"podCIDR": "198.18.7.0/24"}}
			f.put(nodesPath, bare)
			r := start(t, f, "control")

			r.until("all are there", func(s cluster.State) bool {
				return s.Synced && len(s.Nodes) == 4
			})
			f.put(nodesPath, node("changes", 9))
			f.remove(nodesPath, "goes")
			f.put(nodesPath, node("comes", 4))
			s := r.until("the changes are seen", func(s cluster.State) bool {
				n := find(s, "changes")
				return find(s, "goes") == nil && find(s, "comes") != nil &&
					n.Addresses[0].String() == "198.19.0.9"
			})
			if n := find(s, "control"); !n.ControlPlane || n.Created.IsZero() ||
				find(s, "comes").ControlPlane {
				t.Errorf("control %+v", n)
			}

			s.Revision = 0
			if first == nil {
				first = &s
			} else if d := cmp.Diff(*first, s,
				cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})); d != "" {
				t.Errorf("it differs from the first way:\n%s", d)
			}

			if asked := f.count("protobuf " + nodesPath); asked > 0 == tc.noProto {
				t.Errorf("%d answers were protobuf", asked)
			}
		})
	}
}
