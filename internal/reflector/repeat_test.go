package reflector_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/reflector"
)

// Without ReportAtOnce, which is the control, client-go repeats a request if the response has
// Retry-After.
func TestReadsAreReportedAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*rest.Config)
		status int
		once   bool
	}{
		"client-go":               {func(*rest.Config) {}, http.StatusGatewayTimeout, false},
		"a cache that lags":       {reflector.ReportAtOnce, http.StatusGatewayTimeout, true},
		"a server that is laden":  {reflector.ReportAtOnce, http.StatusTooManyRequests, true},
		"a server without a word": {reflector.ReportAtOnce, http.StatusInternalServerError, true},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
				_ *http.Request) {
				requests.Add(1)
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(tc.status)
			}))
			defer server.Close()
			cfg := &rest.Config{Host: server.URL}
			tc.change(cfg)
			client, err := dynamic.NewForConfig(cfg)
			errtest.Must(t, err)

			_, err = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).List(
				t.Context(), metav1.ListOptions{})
			if n := requests.Load(); err == nil || (n == 1) != tc.once {
				t.Errorf("%d requests, error %v", n, err)
			}
		})
	}
}
