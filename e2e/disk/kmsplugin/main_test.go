package main

import (
	"encoding/base64"
	"strings"
	"testing"

	"k8s.io/kms/pkg/service"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestKeys(t *testing.T) {
	line := func(c string) string {
		return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(c, 32)))
	}
	former, err := parse(line("a") + "\n")
	errtest.Must(t, err)
	wrapped, err := former.Encrypt(t.Context(), "", []byte("data"))
	errtest.Must(t, err)
	both, err := parse(line("a") + "\n" + line("b") + "\n")
	errtest.Must(t, err)

	r := &service.DecryptRequest{Ciphertext: wrapped.Ciphertext, KeyID: wrapped.KeyID}
	if plain, err := both.Decrypt(t.Context(), "", r); err != nil || string(plain) != "data" {
		t.Errorf("the former key opens %q, %v", plain, err)
	}
	if status, err := both.Status(t.Context()); err != nil || status.KeyID == wrapped.KeyID {
		t.Errorf("%+v, %v: the last key wraps", status, err)
	}

	r.KeyID = both.wraps().id
	if _, err := both.Decrypt(t.Context(), "", r); err == nil {
		t.Error("the other key unwraps the data key")
	}

	for _, bad := range []string{"", "\n", "YQ==", "?" + line("a")} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
