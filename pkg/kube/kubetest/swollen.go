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

// Limits of the memory for reading one object, bytes.
const (
	mayAllocate = 12 << 20
	mayKeep     = 64 << 10
)

// Swollen is an object that is large because of one repeated field.
type Swollen struct {
	message []byte
	read    func(message []byte) (kept any, problem string, err error)
}

// Check reads each object, and fails the test unless it results in a problem and takes little
// memory. It checks the memory that is allocated during the reading, and the memory that is kept.
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

// Grow returns an object of about the largest size that etcd accepts. object returns a message with
// n entries of a field; its size must be linear in n. read reads a message, and returns what is
// kept of it and the problem.
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

// Protobuf returns an object in protobuf, in the envelope of an API server.
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

// Memory runs the garbage collector and returns the memory statistics.
func Memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
