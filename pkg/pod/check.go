package pod

import (
	"errors"
	"fmt"

	"github.com/kubeveil/kubeveil/internal/netns"
	"github.com/kubeveil/kubeveil/internal/nl"
)

// Check compares the kernel with the record, on the node and in the namespace at nsPath. It returns
// a sentence for each difference, and none if everything is as Attach made it. A missing link or
// namespace is a difference. An error means that the check itself failed.
func (p Paths) Check(r Record, nsPath string) ([]string, error) {
	unlock, err := p.lock(r.HostLink)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var texts []string
	k, err := openKernel()
	if err != nil {
		return nil, err
	}
	defer k.close()

	ends, err := readNodeEnds(k, []Record{r})
	switch n := ends[r.HostLink]; {
	case errors.Is(err, ErrClosed):
		texts = append(texts, err.Error())
	case err != nil:
		return nil, err
	case n == nil:
		texts = append(texts, fmt.Sprintf("find link %s: %v", r.HostLink, ErrNotFound))
	default:
		texts = n.diff(r).texts
	}

	var e end
	err = netns.Do(nsPath, func() (err error) {
		h, err := nl.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		e, err = readPodEnd(h, r)
		return err
	})

	switch {
	case errors.Is(err, ErrNotFound):
		return append(texts, "in the pod: "+err.Error()), nil
	case err != nil:
		return nil, fmt.Errorf("in the pod: %w", err)
	}

	return append(texts, e.diffPod(r)...), nil
}
