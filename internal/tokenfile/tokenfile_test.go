package tokenfile_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/tokenfile"
)

func TestRefusedTokenIsReadAgain(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer renewed" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	filetest.Write(t, file, []byte("expired"), 0o600)
	// As clientcmd and rest.InClusterConfig leave it: the file's content beside its name.
	cfg := &rest.Config{Host: server.URL, BearerToken: "expired", BearerTokenFile: file}
	tokenfile.Renew(cfg)
	client, err := rest.HTTPClientFor(cfg)
	errtest.Must(t, err)
	get := func(want int) {
		t.Helper()
		r, err := client.Get(server.URL)
		errtest.Must(t, err)
		errtest.Must(t, r.Body.Close())
		if r.StatusCode != want {
			t.Errorf("status %d, want %d", r.StatusCode, want)
		}
	}

	get(http.StatusUnauthorized) // client-go keeps a token that the same request has read
	get(http.StatusUnauthorized)
	filetest.Write(t, file, []byte("renewed\n"), 0o600)
	get(http.StatusOK)
}

func TestOtherCredentialsStay(t *testing.T) {
	cfg := &rest.Config{BearerToken: "fixed"}
	tokenfile.Renew(cfg)
	if cfg.BearerToken != "fixed" || cfg.WrapTransport != nil {
		t.Error("a token without a file was changed")
	}
}
