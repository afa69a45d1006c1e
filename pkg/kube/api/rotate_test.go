package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

// Requests move to another connection after a time, and never return to an earlier one.
func TestRequestsMoveToAnotherConnection(t *testing.T) {
	var from string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request) {
		from = r.RemoteAddr
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	now := time.Now()
	client, err := newRotating(&rest.Config{Host: server.URL,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, func() time.Time { return now })
	errtest.Must(t, err)

	get := func() string {
		t.Helper()
		r, err := client.Get(server.URL)
		errtest.Must(t, err)
		defer r.Body.Close()
		errtest.Must(t, errtest.Of(io.Copy(io.Discard, r.Body)))
		return from
	}

	seen := map[string]bool{}
	for range transports {
		first := get()
		now = now.Add(moveEvery - time.Second)
		if again := get(); again != first {
			t.Errorf("within %v requests moved from %s to %s", moveEvery, first, again)
		}
		if seen[first] {
			t.Errorf("requests came back to %s", first)
		}
		seen[first] = true
		now = now.Add(time.Second)
	}
}
