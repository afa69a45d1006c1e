package link

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/kubeveil/kubeveil/internal/kfeature"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link/hook"
)

// Remove removes the table, of any version, and returns what it removed. It detaches the programs
// from links of the calling thread's network namespace, then does what bpfmaps.Remove does. It
// needs no open table, and continues after an error. A missing directory is not an error.
func Remove(dir string) ([]string, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	detached, err := detachLinks(dir)
	removed, other := bpfmaps.Remove(dir)
	return append(detached, removed...), errors.Join(err, other)
}

// detachLinks removes our programs from all links and from the array of the egress guard.
func detachLinks(dir string) ([]string, error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	has, err := kfeature.TCX.Has()
	hk := hook.New(err == nil && has)
	var taken []string
	var errs []error
	for _, l := range links {
		did, err := detachLink(h, hk, l)
		taken = append(taken, did...)
		if err != nil && !errors.Is(err, tchook.ErrLinkGone) {
			errs = append(errs, fmt.Errorf("detach from %s: %w", l.Attrs().Name, err))
		}
	}
	return taken, errors.Join(append(errs, clearTranslate(dir))...)
}

func detachLink(h *nl.Handle, hk hook.Attacher, l nl.Link) ([]string, error) {
	var taken []string
	for _, dir := range []direction{ingress, egress} {
		p := hook.Point{Index: l.Attrs().Index, Dir: dir}
		ours, err := hook.Ours(h, hk, p)
		if err != nil {
			return taken, err
		}
		for _, prog := range ours {
			if err = hk.Detach(h, p, prog); err != nil {
				break
			}
			taken = append(taken, fmt.Sprintf("program of services at %s %s", l.Attrs().Name, dir))
		}
		hook.CloseAll(ours)
		if err != nil {
			return taken, err
		}
	}
	if g := l.Attrs().Group; len(taken) > 0 && (g == abi.PodGroup ||
		g == abi.TunnelGroup) {
		return taken, hk.Tidy(h, l.Attrs().Index)
	}
	return taken, nil
}
