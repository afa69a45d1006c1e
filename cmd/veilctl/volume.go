package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/remote"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// volumeVerbs are those of encrypted volumes.
var volumeVerbs = []verb{
	{
		name: "volume list", short: "encrypted volumes and snapshots, and what is wrong with them",
		register: volumeList,
		about: `It shows VeilVolumes beside the PersistentVolumes and VolumeSnapshotContents they are for: one that nobody has is shown as such, and
one that is missing. Exit status 1 when something is wrong.`,
		examples: `veilctl volume list
veilctl volume list -o json | jq '.volumes[] | select(.problems)'`,
	},
	{
		name: "volume show", args: "VOLUME", short: "all that is known of one volume",
		register: volumeShow,
		about: "VOLUME is the name of the VeilVolume: the PersistentVolume's, or a snapshot's " +
			"handle. No key is shown, wrapped ones neither.",
		examples: "veilctl volume show pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f",
	},
	{
		name: "volume rewrap", args: "[VOLUME...]",
		short: "wrap keys by the present key-encryption key", register: volumeRewrap,
		about: `It asks the nodes that have the volumes, and waits. Volumes stay open, and no disk is touched. Those that are wrapped by the present key
are left. A node that cannot reach its key service leaves the request in the VeilVolume and tries again.`,
		examples: `veilctl volume rewrap pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
veilctl volume rewrap -all -wait 10m`,
	},
	recoverVerb,
	destroyVerb,
	benchStorageVerb,
}

// volumesOf opens the volumes of a cluster.
func volumesOf(access *remote.Access) (*remote.Cluster, *kubestore.Store, error) {
	cluster, err := access.Open()
	if err != nil {
		return nil, nil, err
	}
	return cluster, kubestore.NewForClient(cluster.Dynamic, ""), nil
}

// oneVolume is the argument of a verb that takes one.
func oneVolume(c call) (string, error) {
	if len(c.args) != 1 {
		return "", fmt.Errorf("name one volume, as veilctl volume list does: %w", errUsage)
	}
	return c.args[0], nil
}

func volumeShow(fs *flag.FlagSet) func(call) error {
	var access remote.Access
	access.Register(fs)
	return func(c call) error {
		name, err := oneVolume(c)
		if err != nil {
			return err
		}
		cluster, store, err := volumesOf(&access)
		if err != nil {
			return err
		}
		o, err := store.Object(c.ctx, name)
		if errors.Is(err, volume.ErrNotFound) {
			return fmt.Errorf("there is no volume %s: see veilctl volume list", name)
		}

		if err != nil {
			return err
		}
		around, err := surroundings(c.ctx, cluster)
		if err != nil {
			return err
		}

		r := describe(o, around)
		if c.json {
			err = printJSON(c.out, r)
		} else {
			err = showVolume(c, r)
		}

		if err == nil && len(r.Problems) > 0 {
			err = errWrong
		}
		return err
	}
}

func showVolume(c call, r volumeReport) error {
	rows := [][]string{{"Volume", r.Volume}, {"Kind", r.kind()}, {"Phase", r.Phase},
		{"Node", orNone(r.Node)}, {"Open on", orNone(r.Writer)}, {"Size", size(r.Bytes)}}
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
	return table(c.out, "Volume | "+r.Volume, rows[1:])
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// size is n bytes in the largest unit that divides it into at least one.
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
