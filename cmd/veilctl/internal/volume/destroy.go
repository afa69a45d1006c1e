package volume

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// belonging is a kind of Kubernetes object for a volume or a snapshot, such as PersistentVolume.
type belonging struct {
	resource schema.GroupVersionResource
	// name is kubectl's name of the kind.
	name string
	// finalizer is the finalizer that the node's side-car removes once its driver has deleted the
	// volume or snapshot.
	finalizer string
	// driver, handle and user are paths of fields. user is the reference to the claim or snapshot
	// for which the object was made, and users is the resource of that claim or snapshot.
	driver, handle, user []string
	users                schema.GroupVersionResource
	// userName is kubectl's name of the kind of users.
	userName string
}

var belongings = []belonging{
	{
		resource:  schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"},
		name:      "persistentvolume",
		finalizer: "external-provisioner.volume.kubernetes.io/finalizer",
		driver:    []string{"spec", "csi", "driver"},
		handle:    []string{"spec", "csi", "volumeHandle"}, user: []string{"spec", "claimRef"},
		users:    schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"},
		userName: "pvc",
	},
	{
		resource: snapshotContents, name: "volumesnapshotcontent",
		finalizer: "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
		driver:    []string{"spec", "driver"}, handle: []string{"status", "snapshotHandle"},
		user: []string{"spec", "volumeSnapshotRef"},
		users: schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1",
			Resource: "volumesnapshots"}, userName: "volumesnapshot",
	},
}

// destroyReport is the result for a volume.
type destroyReport struct {
	Volume string `json:"volume"`
	// Asked is the node that received the request to destroy the volume, with --no-owner.
	Asked string `json:"asked,omitempty"`
	// KeyDestroyed reports whether this call or an earlier one destroyed the wrapped key.
	KeyDestroyed bool `json:"keyDestroyed"`
	// Released are the objects that were deleted and from which the finalizer was removed, as
	// kind/name.
	Released []string `json:"released,omitempty"`
	// Left are commands that delete the remaining claims and snapshots of the volume.
	Left  []string `json:"left,omitempty"`
	Error string   `json:"error,omitempty"`
}

func volumeDestroy() *cobra.Command {
	cmd := &cobra.Command{
		Use: "destroy VOLUME...", Short: "Destroy volumes whose node is gone for good, keys first",
		Long: `It removes the wrapped key from the VeilVolume. After that, no copy of the disk can
be opened, and the data cannot be recovered. Then it deletes the PersistentVolume or
VolumeSnapshotContent, removes the finalizer that only the side-car of the lost node would remove,
and finally deletes the VeilVolume. The command may be repeated. It does not delete the claim or
snapshot, but prints how to do so.

It refuses a volume if an existing node has it or may open it. In that case, delete the claim, and
the node destroys the volume. A node counts as gone if its Node object is deleted. --gone NODE
declares a node gone whose object exists and is not Ready. Switch that machine off first: the
command cannot check this, and on a running machine the volume stays open.

--no-owner is for a volume without a PersistentVolume or VolumeSnapshotContent, which the reclaim
policy Retain can leave. Its node exists: veilctl requests that the node destroys the volume, its
key and its disk, and waits. It refuses a volume with an owner, and one younger than five minutes.`,
		Example: `veilctl volume destroy pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
veilctl volume destroy --gone node-1 pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
veilctl volume destroy --no-owner pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
veilctl volume destroy $(kubectl get veilvolumes --field-selector spec.node=node-1 -o name |
    cut -d/ -f2)`,
	}
	fs := cmd.Flags()
	var access remote.Access
	access.Register(cmd.Flags())
	verb.CompleteNames(cmd, math.MaxInt, volumeNames(&access))
	gone := fs.String("gone", "",
		"`node` that will not return, although its Node object exists")
	noOwner := fs.Bool("no-owner", false,
		"destroy volumes without an owner, by their nodes")
	long := fs.Duration("wait", 2*time.Minute,
		"how long to wait with --no-owner; 0 does not wait")
	return verb.Reporting(cmd, func(c verb.Call) error {
		if len(c.Args) == 0 {
			return fmt.Errorf("name volumes, as veilctl volume list does: %w", verb.ErrUsage)
		}
		if *noOwner && *gone != "" {
			return fmt.Errorf("--no-owner is for a node that exists and --gone for a node that is "+
				"gone: give only one of them: %w", verb.ErrUsage)
		}
		cluster, store, err := volumesOf(&access)
		if err != nil {
			return err
		}
		d := destroyer{cluster: cluster, store: store, gone: *gone}
		if *noOwner {
			return showDestroyed(c, d.unowned(c.Ctx, c.Args, *long), *long > 0)
		}
		var reports []destroyReport
		for _, name := range c.Args {
			reports = append(reports, d.destroy(c.Ctx, name))
		}
		return showDestroyed(c, reports, true)
	})
}

// destroyer destroys volumes whose nodes are gone.
type destroyer struct {
	cluster *remote.Cluster
	store   *kubestore.Store
	// gone is the node that the user declares gone; "" if there is none.
	gone string
}

// destroy destroys the key of a volume and deletes its objects. The VeilVolume is deleted last, so
// that a later call can continue an interrupted one.
func (d *destroyer) destroy(ctx context.Context, name string) destroyReport {
	r := destroyReport{Volume: name}
	err := d.store.Destroy(ctx, name, func(o kubestore.Object) error {
		return d.mayDestroy(ctx, o)
	})
	if err == nil {
		r.KeyDestroyed = true
		err = d.release(ctx, &r)
	}
	if err == nil {
		err = d.store.Forget(ctx, name)
	}
	if errors.Is(err, volume.ErrNotFound) {
		err = errors.New("there is no such volume: see veilctl volume list")
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// mayDestroy returns an error if an existing node holds the volume or may open it.
func (d *destroyer) mayDestroy(ctx context.Context, o kubestore.Object) error {
	nodes := []string{o.State.Request.Node, o.State.Writer}
	if t := o.Asked.TakeOver; t != nil {
		nodes = append(nodes, t.To)
	}
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == "" })
	if len(nodes) == 0 {
		return errors.New("its VeilVolume names no node, so its node cannot be gone: delete the " +
			"claim or snapshot")
	}
	if d.gone != "" && !slices.Contains(nodes, d.gone) {
		return fmt.Errorf("it belongs to node %s, not to %s",
			strings.Join(slices.Compact(nodes), " and "), d.gone)
	}
	for _, node := range slices.Compact(nodes) {
		if err := d.checkGone(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (d *destroyer) checkGone(ctx context.Context, node string) error {
	n, err := d.cluster.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("node %s: %w", node, err)
	case ready(n):
		return fmt.Errorf("node %[1]s is Ready: delete the claim or snapshot, and node %[1]s "+
			"destroys the volume with its disk; if it has neither, add --no-owner", node)
	case node != d.gone:
		return fmt.Errorf("node %[1]s is not Ready, but its Node exists: if it will not return, "+
			"run kubectl delete node %[1]s, or add --gone %[1]s", node)
	}
	return nil
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// release deletes the volume's objects of the kinds in belongings, and sets r.Left to the commands
// for its claims and snapshots.
func (d *destroyer) release(ctx context.Context, r *destroyReport) error {
	for _, b := range belongings {
		list, err := d.cluster.Dynamic.Resource(b.resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // The cluster has no definitions of snapshots.
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", b.resource.Resource, err)
		}

		for _, o := range list.Items {
			text := func(path ...string) string {
				s, _, _ := unstructured.NestedString(o.Object, path...)
				return s
			}
			if text(b.driver...) != Driver || text(b.handle...) != r.Volume {
				continue
			}
			if err := d.letGo(ctx, b, &o); err != nil {
				return fmt.Errorf("delete %s %s: %w", b.name, o.GetName(), err)
			}
			r.Released = append(r.Released, b.name+"/"+o.GetName())
			user, _, _ := unstructured.NestedStringMap(o.Object, b.user...)
			left, err := d.cluster.Dynamic.Resource(b.users).Namespace(user["namespace"]).Get(ctx,
				user["name"], metav1.GetOptions{})
			if err == nil && string(left.GetUID()) == user["uid"] {
				r.Left = append(r.Left, fmt.Sprintf("kubectl delete -n %s %s %s", user["namespace"],
					b.userName, user["name"]))
			}
		}
	}
	return nil
}

// letGo deletes an object, and then removes the side-car's finalizer. In the other order, a
// side-car of another node might restore the finalizer.
func (d *destroyer) letGo(ctx context.Context, b belonging, o *unstructured.Unstructured) error {
	objects, uid := d.cluster.Dynamic.Resource(b.resource), o.GetUID()
	err := objects.Delete(ctx, o.GetName(),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err == nil {
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			now, err := objects.Get(ctx, o.GetName(), metav1.GetOptions{})
			if err != nil || now.GetUID() != uid ||
				!slices.Contains(now.GetFinalizers(), b.finalizer) {
				return err
			}
			now.SetFinalizers(slices.DeleteFunc(now.GetFinalizers(),
				func(f string) bool { return f == b.finalizer }))
			_, err = objects.Update(ctx, now, metav1.UpdateOptions{})
			return err
		})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// showDestroyed prints reports. If waited is set, a volume that is not destroyed yet counts as
// wrong.
func showDestroyed(c verb.Call, reports []destroyReport, waited bool) error {
	wrong := false
	var rows [][]string
	for _, r := range reports {
		result := "destroyed"
		switch {
		case r.Error != "" && r.KeyDestroyed:
			result = "its key is destroyed; repeat the command for the rest: " + r.Error
		case r.Error != "":
			result = "REFUSED: " + r.Error
		case r.Asked != "" && !r.KeyDestroyed:
			result = fmt.Sprintf("requested from node %s and not done yet: see the log of its "+
				"veil-csi (kubectl -n kube-system get pods -o wide "+
				"-l app.kubernetes.io/component=veil-csi)", r.Asked)
		case len(r.Left) > 0:
			result = "destroyed; now run: " + strings.Join(r.Left, "; ")
		}
		wrong = wrong || r.Error != "" || waited && !r.KeyDestroyed
		rows = append(rows, []string{r.Volume, result})
	}
	return c.Print(reports, wrong, func() error {
		return verb.Table(c.Out, "VOLUME | RESULT", rows)
	})
}
