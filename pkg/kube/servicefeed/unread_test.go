package servicefeed

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/kubetest"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/kube/wire"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// sliceContent returns the message of a slice of service shop/web, without its envelope.
func sliceContent(t *testing.T, name string, endpoints int) []byte {
	t.Helper()
	yes, port, main, node := true, int32(8080), "main", "node-1"
	s := discoveryv1.EndpointSlice{AddressType: "IPv4",
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "7",
			Labels: map[string]string{object.ServiceNameLabel: "web"}},
		Ports: []discoveryv1.EndpointPort{{Name: &main, Port: &port}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{NodeName: &node,
			Addresses:  []string{fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes}})
	}
	content, err := s.Marshal()
	errtest.Must(t, err)
	return content
}

// serviceContent returns the message of service shop/web, without its envelope.
func serviceContent(t *testing.T) []byte {
	t.Helper()
	s := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", ResourceVersion: "7"},
		Spec: corev1.ServiceSpec{ClusterIP: "198.18.128.1", ClusterIPs: []string{"198.18.128.1"},
			ExternalIPs: []string{"198.18.9.1"},
			Ports:       []corev1.ServicePort{{Name: "main", Port: 80}}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{IP: "198.18.8.1"}}}}}
	content, err := s.Marshal()
	errtest.Must(t, err)
	return content
}

// raw is the content of an object.
type raw []byte

func (r raw) Marshal() ([]byte, error) { return r, nil }

// received returns the object as the client receives it.
func received(t *testing.T, kind object.Kind, content []byte) (*object.Object, error) {
	t.Helper()
	message, err := kubetest.Protobuf(kind.Version.String(), kind.Kind, raw(content))
	errtest.Must(t, err)
	o, _, err := object.FromProtobuf(message)
	return o, err
}

// top returns the ends of the fields of a message.
func top(t *testing.T, message []byte) (ends []int) {
	t.Helper()
	for at := 0; at < len(message); {
		_, _, n := protowire.ConsumeField(message[at:])
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		at += n
		ends = append(ends, at)
	}
	return ends
}

// wronged returns copies of a message. In each, one field at any depth below the metadata has a
// wire type that it must not have: a string or message is a number, or a number is a string.
func wronged(message []byte, depth int) (all [][]byte) {
	for at := 0; at < len(message); {
		number, wireType, n := protowire.ConsumeTag(message[at:])
		size := protowire.ConsumeFieldValue(number, wireType, message[at+n:])
		if n < 0 || size < 0 {
			return all
		}
		rest := message[at+n+size:]
		put := func(field []byte) {
			all = append(all, slices.Concat(message[:at], field, rest))
		}
		if depth > 0 || number != 1 { // the metadata stays
			if wireType == protowire.BytesType {
				put(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 5))
			} else {
				put(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), "x"))
			}
			if inner, _ := protowire.ConsumeBytes(message[at+n:]); wireType == protowire.BytesType {
				for _, w := range wronged(inner, depth+1) {
					put(protowire.AppendBytes(protowire.AppendTag(nil, number, wireType), w))
				}
			}
		}
		at += n + size
	}
	return all
}

// An object that is cut at any byte is an error, or names itself and is not read. Only where a
// field ends can it not be distinguished from a shorter object.
func TestCutObjectIsNotRead(t *testing.T) {
	for _, tc := range []struct {
		kind    object.Kind
		content []byte
	}{{object.EndpointSlices, sliceContent(t, "web-1", 3)}, {object.Services, serviceContent(t)}} {
		ends := top(t, tc.content)
		for i := range len(tc.content) + 1 {
			o, err := received(t, tc.kind, tc.content[:i])
			whole := i == 0 || slices.Contains(ends, i)
			switch {
			case i < ends[0]: // within the metadata
				if err == nil && !whole {
					t.Errorf("%s cut at %d has a name: %+v", tc.kind.Kind, i, o.ObjectMeta)
				}
			case err != nil:
				t.Errorf("%s cut at %d: %v", tc.kind.Kind, i, err)
			case o.Name == "" || o.Namespace != "shop" || (o.Unread == nil) != whole:
				t.Errorf("%s cut at %d, at the end of a field %t: %s, unread %v", tc.kind.Kind, i,
					whole, o.Name, o.Unread)
			}
		}
	}
}

// Garbage and wrong wire types below the metadata never end a stream, and never panic. The object
// names itself.
func TestWrongWireTypesAreNotRead(t *testing.T) {
	for _, tc := range []struct {
		kind    object.Kind
		content []byte
		parse   func(*object.Object) string
	}{
		{object.EndpointSlices, sliceContent(t, "web-1", 3),
			func(o *object.Object) string { return parseEndpoints(o).Problem }},
		{object.Services, serviceContent(t),
			func(o *object.Object) string { return parseService(o).Problem }},
	} {
		all, unread := wronged(tc.content, 0), 0
		end := top(t, tc.content)[0]
		for i := range 256 {
			all = append(all, append(slices.Clone(tc.content[:end]), byte(i), 0xff, byte(i)))
		}
		for i, message := range all {
			o, err := received(t, tc.kind, message)
			if err != nil || o.Name == "" {
				t.Fatalf("%s %d: %v", tc.kind.Kind, i, err)
			}
			if o.Unread == nil {
				continue // a field that is not read, or a valid one
			}
			unread++
			if problem := tc.parse(o); !strings.Contains(problem, wire.ErrMalformed.Error()) {
				t.Errorf("%s %d: problem %q", tc.kind.Kind, i, problem)
			}
		}
		if unread < 200 {
			t.Errorf("%s: %d of %d messages are malformed", tc.kind.Kind, unread, len(all))
		}
	}
}

// A slice of the largest size that the API allows is read whole.
func TestSliceAtTheLimitIsRead(t *testing.T) {
	o, err := received(t, object.EndpointSlices, sliceContent(t, "web-1", 1000))
	errtest.Must(t, err)
	p := parseEndpoints(o)
	if p.Value == nil || p.Value.Endpoints.Len() != 1000 || p.Problem != "" {
		t.Errorf("problem %q", p.Problem)
	}
}

// passing is a feed of slices that stores the numbers of endpoints that it passes on.
func passing(left *Left) (f *feed.Feed[service.Slice], passed map[string]int) {
	passed = map[string]int{}
	f = &feed.Feed[service.Slice]{What: "EndpointSlice",
		Server: &api.Server{Log: slog.New(slog.DiscardHandler)},
		Owner:  func(s service.Slice) any { return s.Service },
		Put:    func(s service.Slice) { passed[s.Name] = s.Endpoints.Len() },
		Drop:   func(s service.Slice) { delete(passed, s.Name) }}
	boundSlices(f, service.DefaultLimits, left)
	return f, passed
}

// An object that cannot be read keeps what was passed on of it, in a watch and in a list, and holds
// up no other. Its problem names it, and ends when it can be read again.
func TestUnreadObjectKeepsItsEntry(t *testing.T) {
	var left Left
	f, passed := passing(&left)
	of := func(content []byte) *object.Object {
		o, err := received(t, object.EndpointSlices, content)
		errtest.Must(t, err)
		return o
	}

	bad := sliceContent(t, "web-1", 3)
	bad = append(bad[:top(t, bad)[0]], 0x12, 0x7f) // a field that is longer than the message
	for _, step := range []struct {
		name    string
		list    [][]byte
		updates [][]byte
		want    map[string]int
		problem bool
	}{
		{"listed", [][]byte{sliceContent(t, "web-1", 3), sliceContent(t, "web-2", 1)}, nil,
			map[string]int{"web-1": 3, "web-2": 1}, false},
		{"unread in a watch", nil, [][]byte{bad, sliceContent(t, "web-2", 2)},
			map[string]int{"web-1": 3, "web-2": 2}, true},
		{"unread in a list", [][]byte{bad, sliceContent(t, "web-2", 4)}, nil,
			map[string]int{"web-1": 3, "web-2": 4}, true},
		{"read again", nil, [][]byte{sliceContent(t, "web-1", 5)},
			map[string]int{"web-1": 5, "web-2": 4}, false},
		{"unread, then gone", [][]byte{sliceContent(t, "web-2", 4)}, nil,
			map[string]int{"web-2": 4}, false},
	} {
		if step.list != nil {
			keeps, list := f.BeginList(), []any{}
			for _, content := range step.list {
				if o := of(content); keeps(o) {
					list = append(list, o)
				}
			}
			errtest.Must(t, f.Replace(list, "7"))
		}
		for _, content := range step.updates {
			errtest.Must(t, f.Update(of(content)))
		}
		problems := f.Server.Problems()
		named := slices.ContainsFunc(problems, func(p string) bool {
			return strings.HasPrefix(p, "EndpointSlice shop/web-1: ")
		})
		if !maps.Equal(passed, step.want) || named != step.problem {
			t.Errorf("%s: passed on %v, want %v; problems %q", step.name, passed, step.want, problems)
		}
	}
}
