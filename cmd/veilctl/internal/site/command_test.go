package site

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
)

// Wrong command lines say what to write instead.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"site":                                   "One of status, link, unlink:",
		"site link":                              "name a kubeconfig of the other cluster with --from",
		"site link --from x --timeout 0s":        "--timeout 0s",
		"site link --from x --token-duration 1m": "--token-duration 1m0s: write at least 10m",
		"site unlink":                            "name one site",
		"site unlink b --wait=-1s":               "--wait -1s",
		"site path-probe send":                   "runs in the pods",
	} {
		err := verbtest.Run(t.Context(), strings.Fields(args), io.Discard, io.Discard, Command())
		if !errors.Is(err, verb.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
