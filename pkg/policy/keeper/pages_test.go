package keeper

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

func TestPolicyPagesWithoutPoliciesSayHowToTurnThemOn(t *testing.T) {
	pages := (&Feature{}).Pages()
	if len(pages) == 0 {
		t.Fatal("there are no pages")
	}
	for path, p := range pages {
		path, posted := strings.CutPrefix(path, "POST ")
		_, err := p(httptest.NewRequest(http.MethodPost, path, strings.NewReader(
			`{"delete": [{"kind": "NetworkPolicy", "namespace": "shop", "name": "web"}]}`)))
		if path == "/v1/policy/seen" {
			_, err = p(httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}")))
		}
		if err == nil || !strings.Contains(err.Error(), "policy: kubernetes") ||
			posted != strings.Contains(err.Error(), "--hand-over") {
			t.Errorf("page %s: error %v, want a remedy", path, err)
		}
	}
}

func TestPolicyPagesRefuseBadNames(t *testing.T) {
	k := New(PolicyConfig{Node: "node-1", Log: slog.New(slog.DiscardHandler)})
	page := (&Feature{keeper: k}).Pages()["/v1/policy/pod"]
	for _, name := range []string{"", "web", "shop/", "/web", "a/b/c"} {
		_, err := page(httptest.NewRequest(http.MethodGet, "/?pod="+url.QueryEscape(name), nil))
		if err == nil || !strings.Contains(err.Error(), "write NAMESPACE/NAME") {
			t.Errorf("pod %q: error %v, want a remedy", name, err)
		}
	}
}

// awayServer is an API server that cannot be reached.
type awayServer struct{ Source }

func (awayServer) ListPolicies(context.Context) (policy.Revisions, error) {
	return nil, errors.New("the API server cannot be reached")
}

func TestPolicyProgressTellsWhatTheAPIServerSays(t *testing.T) {
	k := New(PolicyConfig{Node: "node-1", Log: slog.New(slog.DiscardHandler)})
	f := &Feature{keeper: k, o: FeatureOptions{Source: awayServer{}}}
	page := f.Pages()["/v1/policy/progress"]
	got, err := page(httptest.NewRequest(http.MethodGet, "/", nil))
	if p, ok := got.(Progress); err != nil || !ok || p.Enforced ||
		!slices.Equal(p.Missing, []string{"the API server cannot be reached"}) {
		t.Errorf("progress without the API server: %+v, %v", got, err)
	}

	// A revision is compared without a list.
	got, err = page(httptest.NewRequest(http.MethodGet, "/?revision=r1", nil))
	if p, ok := got.(Progress); err != nil || !ok || p.Enforced || len(p.Missing) != 1 ||
		!strings.Contains(p.Missing[0], "has not listed pods") {
		t.Errorf("progress to a revision: %+v, %v", got, err)
	}
}
