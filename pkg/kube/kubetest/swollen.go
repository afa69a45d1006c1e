package kubetest

import (
	"fmt"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
)

// largest is the largest size of one object that etcd accepts.
const largest = 3 << 19

// What reading one object may cost, in bytes.
const (
	mayAllocate = 12 << 20
	mayKeep     = 64 << 10
)

// Swollen is an object that is large by one repeated field.
type Swollen struct {
	message []byte
	read    func(message []byte) (kept any, problem string, err error)
}

// Check reads objects of the largest size that etcd accepts. Each has a problem, and costs this
// process little: neither the memory that is kept nor the memory that is allocated while it is read
// is a multiple of the object.
func Check(t *testing.T, all map[string]Swollen) {
	for name, s := range all {
		t.Run(name, func(t *testing.T) {
			before := Memory()
			kept, problem, err := s.read(s.message)
			after := Memory()
			if err != nil || problem == "" {
				t.Errorf("problem %q, %v", problem, err)
			}
			allocated := after.TotalAlloc - before.TotalAlloc
			held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			t.Logf("%d kB: %d kB allocated, %d kB kept", len(s.message)>>10, allocated>>10,
				held>>10)
			if allocated > mayAllocate || held > mayKeep {
				t.Errorf("%d bytes allocated, %d kept; want at most %d, %d", allocated, held,
					mayAllocate, mayKeep)
			}
			runtime.KeepAlive(kept)
		})
	}
}

// Grow returns the largest object that etcd takes: object returns a message with n entries of a
// field, whose size is linear in n. read returns what is kept of a message, and the problem.
func Grow(t *testing.T, object func(n int) ([]byte, error),
	read func(message []byte) (kept any, problem string, err error)) Swollen {
	t.Helper()
	few, err := object(1000)
	if err != nil {
		t.Fatal(err)
	}
	message, err := object(1000 * largest / len(few) * 95 / 100)
	if err != nil || len(message) < largest/2 {
		t.Fatalf("%d bytes, %v", len(message), err)
	}
	return Swollen{message, read}
}

// Protobuf returns an object in the envelope in which an API server sends it.
func Protobuf(apiVersion, kind string, o interface{ Marshal() ([]byte, error) }) ([]byte, error) {
	raw, err := o.Marshal()
	if err != nil {
		return nil, err
	}
	envelope := kruntime.Unknown{Raw: raw,
		TypeMeta: kruntime.TypeMeta{APIVersion: apiVersion, Kind: kind}}
	b, err := envelope.Marshal()
	return append([]byte("k8s\x00"), b...), err
}

// Repeat returns n values.
func Repeat[T any](n int, v func(i int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v(i)
	}
	return out
}

// Numbered returns n different words.
func Numbered(n int) []string {
	return Repeat(n, func(i int) string { return fmt.Sprint("v", i) })
}

// ManyLabels returns metadata with n labels.
func ManyLabels(n int) metav1.ObjectMeta {
	o := metav1.ObjectMeta{Namespace: "evil", Name: "large", UID: "u", Labels: map[string]string{}}
	for _, key := range Numbered(n) {
		o.Labels[key] = "x"
	}
	return o
}

// Memory collects garbage and returns what is left.
func Memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
