package volume

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// Driver is the name of veil-csi in Kubernetes.
	Driver = "csi.kubeveil.io"
	// orphanAge is the age from which a volume without an owner is a problem. A younger volume may
	// have no PersistentVolume yet, because that is created later.
	orphanAge = 5 * time.Minute
)

var snapshotContents = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1",
	Resource: "volumesnapshotcontents"}

// volumesReport is the output of volume list; fields are added, never renamed.
type volumesReport struct {
	Well    bool           `json:"well"`
	Volumes []volumeReport `json:"volumes"`
}

// volumeReport is the output for a volume. It contains no key.
type volumeReport struct {
	Volume   string `json:"volume"`
	Snapshot bool   `json:"snapshot,omitempty"`
	Phase    string `json:"phase,omitempty"`
	// Node is the node that has the volume's disk. Writer is the node that has the volume open.
	Node         string `json:"node,omitempty"`
	Writer       string `json:"writer,omitempty"`
	Bytes        int64  `json:"bytes,omitempty"`
	PendingBytes int64  `json:"pendingBytes,omitempty"`
	// For is the claim or snapshot of the volume, as namespace/name.
	For        string `json:"for,omitempty"`
	Source     string `json:"source,omitempty"`
	Backend    string `json:"backend,omitempty"`
	Parameters string `json:"parameters,omitempty"`
	Device     string `json:"device,omitempty"`
	UUID       string `json:"uuid,omitempty"`
	Content    string `json:"content,omitempty"`
	// Provider and KeyID name the key-encryption key.
	Provider     string `json:"provider,omitempty"`
	KeyID        string `json:"keyID,omitempty"`
	Epoch        uint64 `json:"epoch,omitempty"`
	PendingEpoch uint64 `json:"pendingEpoch,omitempty"`
	// Requests describes the requests of users that are not done yet.
	Requests []string `json:"requests,omitempty"`
	// Problems are sentences. A volume without problems is well.
	Problems []string `json:"problems,omitempty"`
}

func (r volumeReport) kind() string {
	if r.Snapshot {
		return "snapshot"
	}
	return "volume"
}

func (r volumeReport) epoch() string {
	if r.PendingEpoch != 0 {
		return fmt.Sprintf("%d, or %d: an opening or closing was cut short", r.Epoch,
			r.PendingEpoch)
	}
	return fmt.Sprint(r.Epoch)
}

// around holds facts of the cluster that volumes are compared with.
type around struct {
	now time.Time
	// nodes holds the names of the nodes.
	nodes map[string]bool
	// users holds the claim or snapshot, as namespace/name, by volume id.
	users map[string]string
	// snapshots reports whether the cluster has the definitions of snapshots.
	snapshots bool
}

func volumeList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List encrypted volumes and snapshots, and what is wrong with them",
		Long: `It compares VeilVolumes with the PersistentVolumes and VolumeSnapshotContents that
own them. A VeilVolume without an owner is a problem, and an owner without a VeilVolume too. The
exit status is 1 if there is a problem.`,
		Example: `veilctl volume list
veilctl volume list -o json | jq '.volumes[] | select(.problems)'`,
	}
	var access remote.Access
	access.Register(cmd.Flags())
	return verb.Reporting(cmd, func(c verb.Call) error {
		cluster, store, err := volumesOf(&access)
		if err != nil {
			return err
		}
		objects, err := store.Objects(c.Ctx)
		if err != nil {
			return err
		}
		a, err := surroundings(c.Ctx, cluster)
		if err != nil {
			return err
		}

		r := assessVolumes(objects, a)
		return c.Print(r, !r.Well, func() error { return showVolumes(c.Out, r) })
	})
}

// surroundings reads around from the API server.
func surroundings(ctx context.Context, cluster *remote.Cluster) (around, error) {
	a := around{now: time.Now(), nodes: map[string]bool{}, users: map[string]string{}}
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return a, fmt.Errorf("list nodes: %w", err)
	}

	for _, n := range nodes.Items {
		a.nodes[n.Name] = true
	}

	pvs, err := cluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return a, fmt.Errorf("list persistent volumes: %w", err)
	}

	for _, pv := range pvs.Items {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != Driver {
			continue
		}
		a.users[pv.Spec.CSI.VolumeHandle] = "persistent volume " + pv.Name
		if claim := pv.Spec.ClaimRef; claim != nil {
			a.users[pv.Spec.CSI.VolumeHandle] = claim.Namespace + "/" + claim.Name
		}
	}

	list, err := cluster.Dynamic.Resource(snapshotContents).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return a, nil
	}
	if err != nil {
		return a, fmt.Errorf("list snapshot contents: %w", err)
	}

	a.snapshots = true
	for _, o := range list.Items {
		text := func(fields ...string) string {
			s, _, _ := unstructured.NestedString(o.Object, fields...)
			return s
		}
		if handle := text("status", "snapshotHandle"); text("spec", "driver") == Driver &&
			handle != "" {
			a.users[handle] = text("spec", "volumeSnapshotRef", "namespace") + "/" +
				text("spec", "volumeSnapshotRef", "name")
		}
	}

	return a, nil
}

// assessVolumes builds the report from the VeilVolumes and the facts around them. It is pure.
func assessVolumes(objects []kubestore.Object, a around) volumesReport {
	r := volumesReport{Well: true, Volumes: []volumeReport{}}
	seen := map[string]bool{}
	for _, o := range objects {
		seen[o.State.Volume] = true
		r.Volumes = append(r.Volumes, describe(o, a))
	}
	for id, user := range a.users {
		if !seen[id] {
			r.Volumes = append(r.Volumes, volumeReport{Volume: id, For: user, Problems: []string{
				"its VeilVolume is missing, which holds the key: restore it from a backup of the " +
					"cluster's state"}})
		}
	}
	slices.SortFunc(r.Volumes, func(a, b volumeReport) int {
		return strings.Compare(a.Volume, b.Volume)
	})
	for _, v := range r.Volumes {
		r.Well = r.Well && len(v.Problems) == 0
	}
	return r
}

// describe returns the report about one volume, with its problems.
func describe(o kubestore.Object, a around) volumeReport {
	s := o.State
	r := volumeReport{Volume: s.Volume, For: a.users[s.Volume]}
	if o.Err != nil {
		r.Problems = append(r.Problems, o.Err.Error())
		return r
	}
	r.Snapshot, r.Phase, r.Node, r.Writer = s.Request.Snapshot, string(s.Phase), s.Request.Node,
		s.Writer
	r.Bytes, r.PendingBytes, r.Source = s.Payload, s.PendingPayload, s.Request.Source
	r.Backend, r.Parameters, r.Device, r.Content = s.Request.Backend, s.Request.Parameters,
		s.Device, string(s.Content)
	r.Provider, r.KeyID, r.Epoch, r.PendingEpoch = s.Key.Provider, s.Key.KeyID, s.Epoch,
		s.PendingEpoch
	if s.Phase == volume.Formatting || s.Phase == volume.Ready {
		r.UUID = s.UUID.String()
	}
	if o.Asked.Rewrap != "" {
		r.Requests = append(r.Requests, "to rewrap its key")
	}
	if o.Asked.Destroy {
		r.Requests = append(r.Requests, "to be destroyed")
	}
	if t := o.Asked.TakeOver; t != nil {
		r.Requests = append(r.Requests, fmt.Sprintf("to be taken over from node %s by node %s",
			t.From, t.To))
	}
	r.Problems = problemsOf(r, a, a.now.Sub(o.Created))
	return r
}

func problemsOf(r volumeReport, a around, age time.Duration) []string {
	var out []string
	deleted := r.Phase == string(volume.Deleted)
	if r.Node != "" && !a.nodes[r.Node] && !deleted {
		out = append(out, fmt.Sprintf("node %s is gone: destroy the volume or, if you have its "+
			"disk, let another node take it over: docs/how-to/a-node-that-is-gone.md", r.Node))
	}
	if r.Writer != "" && r.Writer != r.Node && !a.nodes[r.Writer] {
		out = append(out, fmt.Sprintf("it is open on node %s, which is gone: "+
			"docs/how-to/a-node-that-is-gone.md", r.Writer))
	}
	switch {
	case age < orphanAge || r.Snapshot && !a.snapshots:
	case r.For == "" && deleted:
		out = append(out, "it has no owner and its key is destroyed: delete its tombstone with "+
			"kubectl delete veilvolume "+r.Volume)
	case r.For == "":
		out = append(out, "it has no owner, because no PersistentVolume or snapshot has its name: "+
			"destroy it with veilctl volume destroy --no-owner "+r.Volume)
	case deleted:
		out = append(out, fmt.Sprintf("%s still refers to it, but its key is destroyed: delete "+
			"that object", r.For))
	}
	return out
}

func showVolumes(w io.Writer, r volumesReport) error {
	if len(r.Volumes) == 0 {
		_, err := fmt.Fprintln(w, "no encrypted volumes")
		return err
	}
	var rows [][]string
	for _, v := range r.Volumes {
		rows = append(rows, []string{v.Volume, v.kind(), verb.OrDash(v.Phase), verb.OrDash(v.Node),
			verb.OrDash(v.Writer), size(v.Bytes), verb.OrDash(v.Provider), verb.OrDash(v.For)})
	}
	if err := verb.Table(w, "VOLUME | KIND | PHASE | NODE | OPEN ON | SIZE | KEY BY | FOR",
		rows); err != nil {
		return err
	}
	for _, v := range r.Volumes {
		for _, p := range v.Problems {
			fmt.Fprintf(w, "PROBLEM: %s: %s\n", v.Volume, p)
		}
		for _, p := range v.Requests {
			fmt.Fprintf(w, "Request: %s: %s\n", v.Volume, p)
		}
	}
	return nil
}

// PrintWithoutOwners writes the table of volume list without the names of claims and snapshots.
func PrintWithoutOwners(ctx context.Context, w io.Writer, cluster *remote.Cluster) error {
	objects, err := kubestore.NewForClient(cluster.Dynamic, "").Objects(ctx)
	if err != nil {
		return err
	}
	a, err := surroundings(ctx, cluster)
	if err != nil {
		return err
	}
	for id := range a.users {
		a.users[id] = "somebody"
	}
	return showVolumes(w, assessVolumes(objects, a))
}
