package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestAnswers(t *testing.T) {
	t.Setenv(verb.CanaryEnv, "kubeveil-canary")
	s := httptest.NewServer(answers())
	defer s.Close()

	for name, tt := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"a review": {"POST", "/?timeout=10s",
			`{"request":{"uid":"1","object":{"metadata":{"labels":{"refuse":"x"}}}}}`, 200,
			"refused by a pod: x kubeveil-canary"},
		"no review": {"POST", "/", "x", 400, "admission review"},
		"the kinds of an API": {"GET", "/apis/g.example/v1", "", 200,
			`"groupVersion":"g.example/v1"`},
		"an object of it": {"GET", "/apis/g.example/v1/canary", "", 200,
			"kubeveil-canary"},
		"no object of it":                  {"GET", "/apis/g.example/v1/other", "", 405, ""},
		"all groups, for those who ask so": {"GET", "/apis", "", 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), tt.method, s.URL+tt.path,
				strings.NewReader(tt.body))
			errtest.Must(t, err)
			got, err := http.DefaultClient.Do(r)
			errtest.Must(t, err)
			defer got.Body.Close()
			body, err := io.ReadAll(got.Body)
			if err != nil || got.StatusCode != tt.status ||
				!strings.Contains(string(body), tt.want) {
				t.Errorf("%d %s, %v: want %d and %q", got.StatusCode, body, err, tt.status, tt.want)
			}
		})
	}

	http.DefaultClient.CloseIdleConnections()
}

func TestJudgeReview(t *testing.T) {
	const request = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","object":{"metadata":{"labels":{LABELS}}}}}`
	for _, c := range []struct {
		name, body, want string
		allowed          bool
	}{
		{"no label", strings.Replace(request, "LABELS", "", 1), "", true},
		{"label refuse", strings.Replace(request, "LABELS", `"refuse":"asked"`, 1), "asked", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := judge([]byte(c.body))
			errtest.Must(t, err)
			if r.Response.Allowed != c.allowed || r.Response.UID != "7" || r.Request != nil {
				t.Errorf("answer: %+v", r.Response)
			}
			if message, _ := r.Response.Status["message"].(string); !strings.Contains(message,
				c.want) {
				t.Errorf("message %q: want %q in it", message, c.want)
			}
		})
	}

	for _, body := range []string{"", "{}", "[]", `{"request":1}`} {
		if _, err := judge([]byte(body)); err == nil {
			t.Errorf("%q is not an error", body)
		}
	}
}

func FuzzJudgeReview(f *testing.F) {
	f.Add([]byte(`{"request":{"uid":"7"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := judge(body)
		if err == nil && r.Response == nil {
			t.Error("neither an answer nor an error")
		}
	})
}
