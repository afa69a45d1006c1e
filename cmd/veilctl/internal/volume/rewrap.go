package volume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// rewrapTick is the interval between checks whether requests are done.
const rewrapTick = time.Second

// rewrapReport is the result of a request.
type rewrapReport struct {
	Volume string `json:"volume"`
	// Before and After name the key-encryption key before and after the request, as provider and
	// id. They are equal if the present key had already wrapped the volume's key.
	Before string `json:"before"`
	After  string `json:"after,omitempty"`
	// Node is the node that received the request.
	Node  string `json:"node,omitempty"`
	Done  bool   `json:"done"`
	Error string `json:"error,omitempty"`
}

func volumeRewrap() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rewrap [VOLUME...]", Short: "Wrap the keys of volumes with the current key-encryption key",
		Long: `It writes a request for the node of each volume, and waits. Volumes stay open, and
disks are not changed. A key that the present key-encryption key has wrapped stays as it is. If a
node cannot reach its key service, the request stays in the VeilVolume, and the node tries again.`,
		Example: `veilctl volume rewrap pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
veilctl volume rewrap --all --wait 10m`,
	}

	fs := cmd.Flags()
	var access remote.Access
	access.Register(cmd.Flags())
	verb.CompleteNames(cmd, math.MaxInt, volumeNames(&access))
	all := fs.Bool("all", false, "every volume and snapshot that has a key")
	long := fs.Duration("wait", 2*time.Minute, "how long to wait for the nodes; 0 does not wait")
	return verb.Reporting(cmd, func(c verb.Call) error {
		if *all == (len(c.Args) > 0) {
			return fmt.Errorf("name volumes, or give --all: %w", verb.ErrUsage)
		}
		_, store, err := volumesOf(&access)
		if err != nil {
			return err
		}
		names := c.Args
		if *all {
			if names, err = withKeys(c.Ctx, store); err != nil {
				return err
			}
		}
		reports := askRewraps(c.Ctx, store, names)
		if *long > 0 {
			waitRewrapped(c.Ctx, store, reports, *long)
		}
		return showRewrapped(c, reports, *long > 0)
	})
}

// withKeys returns the volumes whose node can wrap their key again at any time. It leaves out
// volumes of the provider secret, whose keys can be wrapped only while the volumes are in use.
func withKeys(ctx context.Context, store *kubestore.Store) ([]string, error) {
	objects, err := store.Objects(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range objects {
		if o.Err == nil && !o.State.Key.IsZero() && o.State.Key.Provider != keyring.NameSecret {
			names = append(names, o.State.Volume)
		}
	}
	slices.Sort(names)
	return names, nil
}

func askRewraps(ctx context.Context, store *kubestore.Store, names []string) []rewrapReport {
	request := time.Now().UTC().Format(time.RFC3339Nano)
	var out []rewrapReport
	for _, name := range names {
		r := rewrapReport{Volume: name}
		o, err := store.Object(ctx, name)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			err = errors.New("there is no such volume: see veilctl volume list")
		case err == nil && o.Err != nil:
			err = o.Err
		case err == nil && o.State.Key.IsZero():
			err = fmt.Errorf("it has no key in phase %s", o.State.Phase)
		case err == nil && o.State.Key.Provider == keyring.NameSecret:
			err = errors.New("a Secret holds its key-encryption key: write the new key into the " +
				"entry key and the old key into previousKey; the next use of the volume rewraps it")
		case err == nil:
			r.Node = o.Holder
			r.Before = keyName(o.State.Key)
			err = store.AskRewrap(ctx, name, request)
		}

		if err != nil {
			r.Error = err.Error()
		}

		out = append(out, r)
	}

	return out
}

func keyName(w keyring.Wrapped) string { return w.Provider + " " + w.KeyID }

// waitRewrapped polls until all requests are done, for at most long. It updates reports.
func waitRewrapped(ctx context.Context, store *kubestore.Store, reports []rewrapReport,
	long time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	tick := time.NewTicker(rewrapTick)
	defer tick.Stop()
	for {
		left := 0
		for i := range reports {
			if r := &reports[i]; r.Error == "" && !r.Done {
				o, err := store.Object(ctx, r.Volume)
				if err == nil && o.Err == nil && o.Asked.Rewrap == "" {
					r.Done, r.After = true, keyName(o.State.Key)
					continue
				}
				left++
			}
		}
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func showRewrapped(c verb.Call, reports []rewrapReport, waited bool) error {
	wrong := false
	var rows [][]string
	for _, r := range reports {
		result := "asked"
		switch {
		case r.Error != "":
			result = r.Error
		case r.Done && r.Before == r.After:
			result = "already wrapped with the current key: " + r.After
		case r.Done:
			result = "re-wrapped: " + r.Before + " → " + r.After
		case waited:
			result = fmt.Sprintf("not done yet: node %s tries again. See the log of its "+
				"veil-csi (kubectl -n kube-system get pods -o wide "+
				"-l app.kubernetes.io/component=veil-csi). If that node is gone for good: "+
				"docs/how-to/a-node-that-is-gone.md", r.Node)
		}
		wrong = wrong || r.Error != "" || waited && !r.Done
		rows = append(rows, []string{r.Volume, result})
	}

	return c.Print(reports, wrong, func() error {
		if len(rows) == 0 {
			_, err := fmt.Fprintln(c.Out, "no volume has a key that its node can rewrap")
			return err
		}
		return verb.Table(c.Out, "VOLUME | RESULT", rows)
	})
}
