package api

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// maxObjects bounds the objects whose problems Problems names. Tenants write objects.
const maxObjects = 64

// Problems returns sentences about current problems, sorted: failing requests and malformed
// objects. It names at most maxObjects objects and counts the others. It is empty if there are no
// problems.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, objects := []string{}, []string{}
	for what, text := range s.problems {
		if strings.Contains(what, "/") {
			objects = append(objects, what)
		} else {
			out = append(out, what+": "+text)
		}
	}
	slices.Sort(objects)
	named := objects[:min(len(objects), maxObjects)]
	for _, what := range named {
		out = append(out, what+": "+s.problems[what])
	}
	slices.Sort(out)
	if more := len(objects) - len(named); more > 0 {
		out = append(out, fmt.Sprintf("%d more objects have problems: see the log of veild", more))
	}
	return out
}

// Report notes the text of err as the problem of a subject. A nil err clears the problem.
func (s *Server) Report(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return // Run ends
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.Note(what, text)
}

// Note sets the problem of a subject; an empty text clears it. It logs when a problem begins,
// changes or ends. It ignores changes in the brackets at the end of the text, which hold the
// server's words.
func (s *Server) Note(what, text string) {
	s.mu.Lock()
	old, had := s.problems[what]
	if s.problems == nil {
		s.problems = map[string]string{}
	}
	if text == "" {
		delete(s.problems, what)
	} else {
		s.problems[what] = text
	}
	s.mu.Unlock()
	switch {
	case text != "" && sentence(text) != sentence(old):
		s.Log.Warn("kubernetes source has a problem", "what", what, "problem", text)
	case text == "" && had:
		s.Log.Info("kubernetes source recovered", "what", what)
	}
}

func sentence(text string) string {
	before, _, _ := strings.Cut(text, " (")
	return before
}

// NoteAll replaces the problems of all subjects that begin with one of prefixes. found holds the
// new problems, keyed by subject.
func (s *Server) NoteAll(prefixes []string, found map[string]string) {
	s.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(s.problems)), func(what string) bool {
		_, still := found[what]
		return still || !slices.ContainsFunc(prefixes,
			func(prefix string) bool { return strings.HasPrefix(what, prefix) })
	})
	s.mu.Unlock()
	for _, what := range gone {
		s.Note(what, "")
	}
	for what, text := range found {
		s.Note(what, text)
	}
}

// Explain returns an error with a sentence about why verb on k failed with err, and a remedy. It
// wraps err, and returns nil if err is nil.
func Explain(verb string, k object.Kind, err error) error {
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		err = ue.Err // without the address, whose parameters differ each time
	}
	invalid := x509.CertificateInvalidError{}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of the API server is not valid at %s, the time of this "+
			"node's clock: set the clock, or renew the certificate (%w)",
			time.Now().UTC().Format("2006-01-02"), err)
	case apierrors.IsNotFound(err) && k.Definitions() != "":
		return fmt.Errorf("the custom resource %s is not installed: apply %s first (%w)", k.What,
			k.Definitions(), err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this identity may not %s %s: apply the manifests, whose rule is in %s, "+
			"and bind it to the user in the kubeconfig (%w)", verb, k.What, k.Rule, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials: renew the kubeconfig "+
			"or the service account token (%w)", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err),
		apierrors.IsServerTimeout(err):
		return fmt.Errorf("the API server did not answer in time (%w)", err)
	case utilnet.IsConnectionRefused(err), utilnet.IsConnectionReset(err):
		return fmt.Errorf("the API server cannot be reached; the last table stays in force (%w)",
			err)
	}
	return fmt.Errorf("%s %s: %w", verb, k.What, err)
}
