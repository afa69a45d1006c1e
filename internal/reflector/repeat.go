package reflector

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// ReportAtOnce changes a configuration so that client-go does not repeat reads by itself. A server
// whose cache lags answers 504 with Retry-After, and so does one that is overloaded with 429.
// client-go repeats such a request ten times (withRetry in k8s.io/client-go/rest/with_retry.go):
// for 40 s a Reflector would not learn that it failed, and neither reads by quorum nor reports it.
func ReportAtOnce(cfg *rest.Config) {
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return reporter{rt} })
}

// reporter takes from answers to reads what makes client-go repeat them.
type reporter struct{ http.RoundTripper }

func (r reporter) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.RoundTripper.RoundTrip(request)
	if err == nil && request.Method == http.MethodGet {
		answer.Header.Del("Retry-After")
	}
	return answer, err
}

// WrappedRoundTripper returns the transport beneath, as k8s.io/apimachinery/pkg/util/net expects.
func (r reporter) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }
