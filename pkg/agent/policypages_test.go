package agent

import (
	"log/slog"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
)

func TestPolicyPagesWithoutPoliciesSayHowToTurnThemOn(t *testing.T) {
	pages := policyPages(nil)
	if len(pages) == 0 {
		t.Fatal("there are no pages")
	}
	for path, p := range pages {
		_, err := p(httptest.NewRequest("GET", path, nil))
		if err == nil || !strings.Contains(err.Error(), "policy: kubernetes") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestPolicyPagesRefuseBadNames(t *testing.T) {
	k := keeper.New(keeper.Options{Node: "node-1", Log: slog.New(slog.DiscardHandler)})
	page := policyPages(k)["/v1/policy/pod"]
	for _, name := range []string{"", "web", "shop/", "/web", "a/b/c"} {
		_, err := page(httptest.NewRequest("GET", "/?pod="+url.QueryEscape(name), nil))
		if err == nil || !strings.Contains(err.Error(), "write NAMESPACE/NAME") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
