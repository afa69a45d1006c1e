package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/keeper/trace"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// errNoPolicies is the answer of the pages that need a Keeper where no policies are enforced.
var errNoPolicies = errors.New("NetworkPolicy is not enforced on this node: " +
	"add the component policy, or set policy: kubernetes")

// Pages returns the admin socket's pages about policies.
func (f *Feature) Pages() map[string]admin.Page {
	k := f.keeper
	pages := f.questions()
	kept := map[string]admin.Page{
		telemetry.PoliciesPath: func(r *http.Request) (any, error) {
			if r.FormValue("counts") != "" {
				return k.ListCounted(), nil
			}
			return k.List(), nil
		},
		telemetry.PolicyPodPath: func(r *http.Request) (any, error) {
			name, err := podName(r.FormValue("pod"))
			if err != nil {
				return nil, err
			}
			return k.ShowPod(name)
		},
		telemetry.PolicyTracePath: func(r *http.Request) (any, error) {
			q, err := questionOf(r)
			if err != nil {
				return nil, err
			}
			return k.Trace(r.Context(), q)
		},

		telemetry.PolicyProgressPath: func(r *http.Request) (any, error) {
			namespace := r.FormValue("namespace")
			if revision := r.FormValue("revision"); revision != "" {
				return k.ProgressTo(revision, namespace), nil
			}
			listed, err := f.o.Source.ListPolicies(r.Context())
			if err != nil {
				return Progress{Missing: []string{err.Error()}}, nil
			}
			return k.Progress(listed, namespace), nil
		},
	}
	for path, page := range kept {
		if pages[path] = page; k == nil {
			pages[path] = func(*http.Request) (any, error) { return nil, errNoPolicies }
		}
	}
	return pages
}

// questions returns the pages about known connections.
func (f *Feature) questions() map[string]admin.Page {
	return map[string]admin.Page{
		telemetry.PolicySeenPage: func(r *http.Request) (any, error) {
			var h policy.Handed
			if err := decode(r, &h); err != nil {
				return nil, fmt.Errorf("objects: %w", err)
			}
			judge, err := f.judges(&h)
			if err != nil {
				return nil, err
			}
			return judge.Seen(r.URL.Query().Get("namespace"))
		},

		telemetry.PolicyTryPage: func(r *http.Request) (any, error) {
			var w policy.Written
			if err := decode(r, &w); err != nil {
				return nil, fmt.Errorf("policies to try: %w", err)
			}
			if err := w.Check(); err != nil {
				return nil, err
			}
			judge, err := f.judges(w.Handed)
			if err != nil {
				return nil, err
			}
			policies, err := f.o.Source.ReadPolicies(w)
			if err != nil {
				return nil, err
			}
			return judge.Try(policies, w.Delete)
		},
	}
}

// decode reads the JSON that a request posts. A field that this version does not know is an error.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// podName reads namespace/name.
func podName(text string) (policy.Name, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return policy.Name{}, fmt.Errorf("%q names no pod: write NAMESPACE/NAME", text)
	}
	return policy.Name{Namespace: namespace, Name: name}, nil
}

// questionOf returns the Question in the form values of a request.
func questionOf(r *http.Request) (trace.Question, error) {
	q := trace.Question{From: r.FormValue("from"), To: r.FormValue("to"),
		About: r.FormValue("about")}
	proto, err := strconv.ParseUint(r.FormValue("protocol"), 10, 8)
	if err != nil {
		return q, fmt.Errorf("protocol: %w", err)
	}
	port, err := strconv.ParseUint(r.FormValue("port"), 10, 16)
	if err != nil {
		return q, fmt.Errorf("port: %w", err)
	}
	q.Proto, q.Port = policy.Proto(proto), uint16(port)
	return q, nil
}
