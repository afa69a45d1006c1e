package secret

import (
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestFreedSecretIsZeroedAndUsedAgain(t *testing.T) {
	var a Arena
	defer a.Close()
	p, err := Alloc[[32]byte](&a)
	errtest.Must(t, err)
	p[7] = 9
	Free(&a, p)
	q, err := Alloc[[32]byte](&a)
	errtest.Must(t, err)
	if p != q || *q != [32]byte{} {
		t.Errorf("second value %p %v, want the zeroed memory of the first, %p", q, *q, p)
	}
}

func TestSecretsDoNotOverlap(t *testing.T) {
	var a Arena
	defer a.Close()
	var all []*[300]byte
	for i := range 500 {
		p, err := Alloc[[300]byte](&a)
		errtest.Must(t, err)
		for j := range p {
			p[j] = byte(i)
		}
		all = append(all, p)
	}
	for i, p := range all {
		for _, b := range p {
			if b != byte(i) {
				t.Fatalf("secret %d holds a byte of another", i)
			}
		}
	}
}

func TestTooLargeSecretIsRefused(t *testing.T) {
	var a Arena
	if _, err := Alloc[[largest + 1]byte](&a); err == nil {
		t.Error("no error")
	}
}
