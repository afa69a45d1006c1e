package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kubeveil/kubeveil/internal/bpfobj"
	"github.com/kubeveil/kubeveil/internal/nft"
	"github.com/kubeveil/kubeveil/internal/nl"
	"github.com/kubeveil/kubeveil/internal/tchook"
	"github.com/kubeveil/kubeveil/pkg/guard/chains"
)

// Remove removes all objects of the guard, of any version: attachments to any link, the nftables
// tables, and the pins in dir. It needs no Guard. It continues after an error and returns what it
// removed. The clsact qdiscs stay, because another program may have added them.
func Remove(dir string) ([]string, error) {
	hooks, err := probeHooks()
	if err != nil {
		return nil, fmt.Errorf("remove guard: %w", err)
	}
	return remove(dir, hooks)
}

func remove(dir string, hooks hooks) ([]string, error) {
	taken, err := detachAll(hooks)
	errs := []error{err}
	for _, name := range chains.TableNames {
		had, err := nft.Delete(name)
		errs = append(errs, err)
		if had {
			taken = append(taken, "nftables table "+name)
		}
	}

	for _, name := range slices.Concat(pinnedPrograms, pinnedMaps) {
		for _, path := range []string{filepath.Join(dir, name),
			filepath.Join(dir, name+bpfobj.NextSuffix)} {
			switch err := os.Remove(path); {
			case err == nil:
				taken = append(taken, "pin "+path)
			case !errors.Is(err, fs.ErrNotExist):
				errs = append(errs, fmt.Errorf("remove pin: %w", err))
			}
		}
	}

	// A directory with foreign files stays.
	if err := os.Remove(dir); err == nil {
		taken = append(taken, "directory "+dir)
	}

	return taken, errors.Join(errs...)
}

func detachAll(hooks hooks) ([]string, error) {
	h, links, err := nl.OpenLinks()
	if err != nil {
		return nil, err
	}
	defer h.Close()

	var taken []string
	var errs []error
	finder := finder{}
	for _, l := range links {
		view := linkOf(l)
		points, err := finder.link(h, hooks, view)
		for p, a := range points {
			for _, prog := range a.Ours {
				if err := hooks.Detach(h, p.Index, p.Hook, prog.ID); err != nil {
					errs = append(errs, fmt.Errorf("detach %s from %s %s: %w", prog.Pin, view.Name,
						p.Hook, err))
					continue
				}
				taken = append(taken, fmt.Sprintf("program %s at %s %s", prog.Pin, view.Name,
					p.Hook))
			}
		}
		if err != nil && !errors.Is(err, tchook.ErrLinkGone) {
			errs = append(errs, fmt.Errorf("list programs of %s: %w", view.Name, err))
		}
	}

	return taken, errors.Join(errs...)
}
