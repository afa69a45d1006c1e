package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Problems returns sentences about present problems, sorted: requests that the API server refuses,
// malformed objects. It is empty when there is none.
func (c *Client) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, len(c.problems))
	for what, text := range c.problems {
		out = append(out, what+": "+text)
	}
	slices.Sort(out)
	return out
}

// report sets the problem of what; nil clears it.
func (c *Client) report(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return // Run ends
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.note(what, text)
}

// note logs when a problem begins, changes or ends, not each time that it
// occurs. A change in the brackets at its end, which hold the server's words, does not count.
func (c *Client) note(what, text string) {
	c.mu.Lock()
	old, had := c.problems[what]
	if text == "" {
		delete(c.problems, what)
	} else {
		c.problems[what] = text
	}
	c.mu.Unlock()
	switch {
	case text != "" && sentence(text) != sentence(old):
		c.log.Warn("kubernetes source has a problem", "what", what, "problem", text)
	case text == "" && had:
		c.log.Info("kubernetes source recovered", "what", what)
	}
}

func sentence(text string) string {
	before, _, _ := strings.Cut(text, " (")
	return before
}

// stateKinds are the kinds that make up a State. Problems of their objects begin with these words.
var stateKinds = []string{"Node", "VeilNode", "ServiceCIDR"}

// objectProblems replaces the problems of objects with found. Such a problem
// begins with one of stateKinds.
func (c *Client) objectProblems(found map[string]string) {
	c.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(c.problems)), func(what string) bool {
		_, still := found[what]
		return still || !slices.ContainsFunc(stateKinds,
			func(kind string) bool { return strings.HasPrefix(what, kind+" ") })
	})
	c.mu.Unlock()
	for _, what := range gone {
		c.note(what, "")
	}
	for what, text := range found {
		c.note(what, text)
	}
}

// explain returns a sentence about why verb on k failed with err, and a remedy; nil stays nil. It
// keeps the error's own text.
func explain(verb string, k kind, err error) error {
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		err = ue.Err // without the address, whose parameters differ each time
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err) && k.version == veilNodeVersion:
		return fmt.Errorf("the custom resource %s is not installed: apply manifests/crd first (%w)",
			k.what, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this identity may not %s %s: apply the manifests, whose rule is in %s, "+
			"and bind it to the user in the kubeconfig (%w)", verb, k.what, k.rule, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials: renew the kubeconfig "+
			"or the service account token (%w)", err)
	case errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err),
		apierrors.IsServerTimeout(err):
		return fmt.Errorf("the API server did not answer in time (%w)", err)
	case utilnet.IsConnectionRefused(err), utilnet.IsConnectionReset(err):
		return fmt.Errorf("the API server cannot be reached; the last table stands (%w)", err)
	}
	return fmt.Errorf("%s %s: %w", verb, k.what, err)
}

// decode reads an answer in JSON.
func decode(raw []byte, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("answer of the API server: %w", err)
	}
	return nil
}
