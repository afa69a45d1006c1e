package bpfmaps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
)

// Remove removes the table, of any version, and returns what it removed: the pins in dir, links
// before maps, and dir if it is empty. It needs no Table and does as much as it can. Established
// connections stay. A missing directory is not an error. Programs at links stay: see package link.
func Remove(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remove table of services: %w", err)
	}

	var links, others, taken []string
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !strings.HasPrefix(e.Name(), PinPrefix) {
			continue
		}
		if l, err := link.LoadPinnedLink(path, nil); err == nil {
			l.Close()
			links = append(links, path)
		} else {
			others = append(others, path)
		}
	}

	// Programs that translate requests go before those that translate replies.
	slices.SortFunc(links, func(a, b string) int { return hookOrder(b) - hookOrder(a) })
	for _, path := range links {
		if err := removeLink(path); err != nil {
			errs = append(errs, err)
			continue
		}
		taken = append(taken, "link "+path)
	}

	for _, path := range others {
		if err := os.Remove(path); err != nil {
			errs = append(errs, fmt.Errorf("remove pin: %w", err))
			continue
		}
		taken = append(taken, "pin "+path)
	}

	// A directory with pins of other programs stays.
	if err := os.Remove(dir); err == nil {
		taken = append(taken, "directory "+dir)
	}

	return taken, errors.Join(errs...)
}

func hookOrder(path string) int {
	return slices.IndexFunc(socketHooks,
		func(h socketHook) bool { return h.program == filepath.Base(path) })
}

// removeLink detaches the program before it deletes the pin. After a deletion of the pin alone, the
// kernel may detach the program later.
func removeLink(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open link %s: %w", path, err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		return fmt.Errorf("detach link %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove pin: %w", err)
	}
	return nil
}
