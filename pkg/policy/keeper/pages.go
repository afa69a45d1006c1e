package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// errNoPolicies is the answer of all pages where no policies are enforced.
var errNoPolicies = errors.New("NetworkPolicy is not enforced on this node: " +
	"add manifests/components/policy, or set policy: kubernetes")

// Pages returns the admin socket's pages about policies.
func (f *Feature) Pages() map[string]telemetry.Page {
	k := f.keeper
	pages := map[string]telemetry.Page{
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

		telemetry.PolicySeenPath: func(r *http.Request) (any, error) {
			return k.known.Seen(r.FormValue("namespace"))
		},

		telemetry.PolicyTryPage: func(r *http.Request) (any, error) {
			var w policy.Written
			d := json.NewDecoder(r.Body)
			d.DisallowUnknownFields()
			if err := d.Decode(&w); err != nil {
				return nil, fmt.Errorf("policies to try: %w", err)
			}
			if err := w.Check(); err != nil {
				return nil, err
			}
			policies, err := f.o.Source.ReadPolicies(w)
			if err != nil {
				return nil, err
			}
			return k.known.Try(policies, w.Delete)
		},

		telemetry.PolicyProgressPath: func(r *http.Request) (any, error) {
			if revision := r.FormValue("revision"); revision != "" {
				return k.ProgressTo(revision), nil
			}
			listed, err := f.o.Source.ListPolicies(r.Context())
			if err != nil {
				return Progress{Missing: []string{err.Error()}}, nil
			}
			return k.Progress(listed), nil
		},
	}
	if k != nil {
		return pages
	}
	for path := range pages {
		pages[path] = func(*http.Request) (any, error) { return nil, errNoPolicies }
	}
	return pages
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
func questionOf(r *http.Request) (Question, error) {
	q := Question{From: r.FormValue("from"), To: r.FormValue("to"),
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
