package reflector

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// ReportAtOnce changes cfg so that client-go does not repeat reads. A server whose cache lags
// answers 504 with Retry-After, and an overloaded server answers 429 with Retry-After. client-go
// repeats such a request ten times (withRetry in k8s.io/client-go/rest/with_retry.go). During that
// time, up to 40 s, a Reflector would not know of the failure, so it would neither report it nor
// make a quorum read.
func ReportAtOnce(cfg *rest.Config) {
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return reporter{rt} })
}

// reporter removes the header Retry-After from responses to GET requests.
type reporter struct{ http.RoundTripper }

func (r reporter) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.RoundTripper.RoundTrip(request)
	if err == nil && request.Method == http.MethodGet {
		answer.Header.Del("Retry-After")
	}
	return answer, err
}

// WrappedRoundTripper returns the wrapped transport. k8s.io/apimachinery/pkg/util/net calls it.
func (r reporter) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }
