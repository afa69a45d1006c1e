package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// Command returns the parent of the verbs about encrypted volumes.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "volume", Short: "Show encrypted volumes of a cluster, and change them",
		Example: "  veilctl volume list --context production",
	}
	cmd.AddCommand(volumeList(), volumeShow(), volumeRewrap(), volumeRecover(), volumeDestroy())
	verb.Choice(cmd)
	return cmd
}

// volumesOf opens a cluster and its store of VeilVolumes.
func volumesOf(access *remote.Access) (*remote.Cluster, *kubestore.Store, error) {
	cluster, err := access.Open()
	if err != nil {
		return nil, nil, err
	}
	return cluster, kubestore.NewForClient(cluster.Dynamic, ""), nil
}

// volumeNames returns a function that lists the names of a cluster's volumes, for completion.
func volumeNames(access *remote.Access) func(context.Context) ([]string, error) {
	return func(ctx context.Context) (names []string, err error) {
		_, store, err := volumesOf(access)
		if err != nil {
			return nil, err
		}
		objects, err := store.Objects(ctx)
		for _, o := range objects {
			names = append(names, o.State.Volume)
		}
		return names, err
	}
}

// oneVolume returns the argument of a verb for one volume.
func oneVolume(c verb.Call) (string, error) {
	if len(c.Args) != 1 {
		return "", fmt.Errorf("name one volume, as veilctl volume list does: %w", verb.ErrUsage)
	}
	return c.Args[0], nil
}

func volumeShow() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show VOLUME", Short: "Show all that is known of one volume",
		Long: `VOLUME is the name of the VeilVolume, which is the name of the PersistentVolume or
the handle of a snapshot. The output contains no key, not even a wrapped key.`,
		Example: "veilctl volume show pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f",
	}
	var access remote.Access
	access.Register(cmd.Flags())
	verb.CompleteNames(cmd, 1, volumeNames(&access))
	return verb.Reporting(cmd, func(c verb.Call) error {
		name, err := oneVolume(c)
		if err != nil {
			return err
		}
		cluster, store, err := volumesOf(&access)
		if err != nil {
			return err
		}
		o, err := store.Object(c.Ctx, name)
		if errors.Is(err, volume.ErrNotFound) {
			return fmt.Errorf("there is no volume %s: see veilctl volume list", name)
		}

		if err != nil {
			return err
		}
		around, err := surroundings(c.Ctx, cluster)
		if err != nil {
			return err
		}

		r := describe(o, around)
		return c.Print(r, len(r.Problems) > 0, func() error { return showVolume(c, r) })
	})
}

func showVolume(c verb.Call, r volumeReport) error {
	rows := [][]string{{"Volume", r.Volume}, {"Kind", r.kind()}, {"Phase", r.Phase},
		{"Node", verb.OrDash(r.Node)}, {"Open on", verb.OrDash(r.Writer)}, {"Size", size(r.Bytes)}}
	if r.PendingBytes != 0 {
		rows = append(rows, []string{"Growing to", size(r.PendingBytes)})
	}
	for _, f := range [][2]string{
		{"For", r.For}, {"Copy of", r.Source}, {"Backend", r.Backend}, {"Parameters", r.Parameters},
		{"Device", r.Device}, {"LUKS uuid", r.UUID}, {"Content", r.Content},
		{"Key by", strings.TrimSpace(r.Provider + " " + r.KeyID)}, {"Epoch", r.epoch()},
		{"Asked for", strings.Join(r.Requests, "; ")},
	} {
		if f[1] != "" {
			rows = append(rows, []string{f[0], f[1]})
		}
	}
	for _, p := range r.Problems {
		rows = append(rows, []string{"PROBLEM", p})
	}
	return verb.Table(c.Out, "Volume | "+r.Volume, rows[1:])
}

// size formats n bytes in the largest binary unit that is not larger than n.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, i := float64(n)/(1<<10), 0
	for ; f >= 1<<10 && i < len(units)-1; i++ {
		f /= 1 << 10
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + " " + units[i:i+1] + "iB"
}
