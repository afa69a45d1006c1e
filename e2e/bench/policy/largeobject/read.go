package largeobject

import (
	"context"
	"errors"
	"fmt"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// Namespaces of the objects. Objects in good are edited and measured; evil has the large objects.
const good, evil = "good", "evil"

// editCount is the number of edits of an object in good. Before each, a large object is written
// again.
const editCount = 5

// suffixWatch marks the time until the API server has sent an edit. suffixEdit marks the time from
// then until the edit is in force.
const suffixEdit, suffixWatch = "_edit", "_watch"

// softLimit is the memory limit of the manifests.
const softLimit = "GOMEMLIMIT=192MiB"

// readWay is a method by which veild's client reads all objects of a kind. env selects it.
type readWay struct {
	name, what string
	env        []string
}

var readWays = []readWay{
	{"stream", "streaming lists", nil},
	{"plain", "plain lists", []string{"KUBE_FEATURE_WatchListClient=false"}},
}

func caseOf(field, way string) string { return "read_" + field + "_" + way }

// Sizes are the numbers of objects.
type Sizes struct {
	// Large is the number of large objects, of one kind at a time. Pods is the number of other
	// pods.
	Large, Pods int
}

// run is one run of the part.
type run struct {
	suite.Choice
	*suite.Run
	sizes Sizes
}

// Run measures veild in a cluster with objects that are as large as etcd accepts, and adds the
// cases to r.
func Run(ctx context.Context, choice suite.Choice, r *suite.Run, z Sizes) (err error) {
	s := &run{choice, r, z}
	l, err := lab.New(ctx, lab.Options{Nodes: 1, VeildConfig: map[string]any{
		"policy": "kubernetes", "serviceProxy": "ebpf", "logLevel": "info"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()

	cfg := rest.CopyConfig(l.Control.Config)
	cfg.QPS, cfg.ContentType = -1, runtime.ContentTypeProtobuf
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	c := clients{typed, l.Control.Dynamic}
	if err := defineClusterPolicies(ctx, c); err != nil {
		return err
	}
	for _, namespace := range []string{good, evil} {
		if err := l.Control.AddNamespace(ctx, namespace); err != nil {
			return err
		}
	}
	for i := range s.sizes.Pods {
		if err := makePod(ctx, c, good, fmt.Sprint("pod-", i),
			map[string]string{"app": fmt.Sprint("app-", i%20)}); err != nil {
			return err
		}
	}
	allowed := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: edited}}
	if _, err := c.NetworkingV1().NetworkPolicies(good).Create(ctx, allowed,
		metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := makeEdited(ctx, c); err != nil {
		return err
	}

	for _, f := range swollenFields {
		if err := s.field(ctx, l.Control, l.Nodes()[0], c, f); err != nil {
			return fmt.Errorf("%s: %w", f.what, err)
		}
	}
	return nil
}

// field makes the large objects of one field, measures veild, and deletes the objects.
func (s *run) field(ctx context.Context, control *lab.Control, n *lab.Node,
	c clients, f swollenField) error {
	if err := n.Program("veild").Kill(ctx); err != nil {
		return err
	}
	if err := makeLarge(ctx, c, f, largeName(0)); err != nil {
		return err
	}
	for i := range s.sizes.Large - 1 {
		if err := control.CopyObject(ctx, f.prefix, largeName(0), largeName(i+1)); err != nil {
			return err
		}
	}
	for _, way := range readWays {
		if err := s.by(ctx, control, n, c, f, way); err != nil {
			return fmt.Errorf("%s: %w", way.what, err)
		}
	}

	var names []string
	for i := range s.sizes.Large {
		names = append(names, largeName(i))
	}
	return control.DeleteObjects(ctx, f.prefix, names...)
}

// by starts veild and measures edits. Before each edit it writes a large object again. It then
// adds the cases and kills veild. It returns an error if veild ended by itself.
func (s *run) by(ctx context.Context, control *lab.Control, n *lab.Node,
	c clients, f swollenField, way readWay) error {
	p, err := n.StartProgramIn(ctx, "veild", append([]string{softLimit}, way.env...))
	if err != nil {
		return err
	}
	if err := inForce(ctx, n); err != nil {
		return err
	}

	watch, err := watchAPI(ctx, control.Config, f.edits.path)
	if err != nil {
		return err
	}
	defer watch.Close()

	var edits, watched []float64
	name := caseOf(f.name, way.name)
	for i := range min(editCount, s.sizes.Large) {
		if err := control.CopyObject(ctx, f.prefix, largeName(i), largeName(i)); err != nil {
			return err
		}
		took, sent, err := f.edits.measure(ctx, n, c, watch, fmt.Sprintf("%s-%d", name, i))
		if err != nil {
			return err
		}
		watched = append(watched, bench.Millis(sent))
		edits = append(edits, bench.Millis(took-sent))
	}
	if !p.Running() {
		return errors.New("veild ended")
	}
	peak, err := load.PeakMiB(p.PID())
	if err != nil {
		return err
	}

	s.Progress("%s: peak %.0f MiB, edit sent after %.0f ms, in force %.0f ms later, at most %.0f ms",
		name, peak, bench.Quantile(watched, 0.5), bench.Quantile(edits, 0.5),
		bench.Quantile(edits, 1))
	s.Add(name, "", bench.MiB, peak)
	s.Add(name+suffixEdit, "", bench.Millisecond, edits...)
	s.Add(name+suffixWatch, "", bench.Millisecond, watched...)
	return p.Kill(ctx)
}

// inForce waits until veild reports that it has read all objects and enforces them.
func inForce(ctx context.Context, n *lab.Node) error {
	return lab.Until(ctx, time.Minute, func() error {
		st, err := admin.Fetch(ctx, n.Path(abi.AdminSocket))
		if err != nil {
			return err
		}
		if p := st.Policy; p == nil || !p.Listed || p.Revision == "" || p.Told != p.Revision {
			return fmt.Errorf("veild does not enforce all policies yet: %+v", p)
		}
		if s := st.Services; s == nil || !s.Listed {
			return fmt.Errorf("veild has not read all services yet: %+v", s)
		}
		return nil
	})
}

// measure makes an edit. took is the time from the API server's answer until the edit is in force.
// sent is the time until watch, which decodes nothing, received the edit.
func (e objectEdit) measure(ctx context.Context, n *lab.Node, c kubernetes.Interface,
	watch *apiWatch, mark string) (took, sent time.Duration, err error) {
	inForce, err := e.edit(ctx, n, c, mark)
	if err != nil {
		return 0, 0, err
	}
	answered := time.Now()
	if err := untilEdited(mark, inForce); err != nil {
		return 0, 0, err
	}
	took = time.Since(answered)
	at, err := watch.sent(ctx, mark)
	return took, min(took, max(0, at.Sub(answered))), err
}

// editPolicy is the edit of policyEdit. It changes a port of a NetworkPolicy.
func editPolicy(ctx context.Context, n *lab.Node, c kubernetes.Interface,
	mark string) (inForce func() (bool, error), err error) {
	before, err := admin.Fetch(ctx, n.Path(abi.AdminSocket))
	if err != nil {
		return nil, err
	}
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"edit": %q}},
		"spec": {"egress": [{"ports": [{"port": %d}]}]}}`, mark, 1+time.Now().UnixMicro()%65000)
	if _, err := c.NetworkingV1().NetworkPolicies(good).Patch(ctx, edited, types.MergePatchType,
		patch, metav1.PatchOptions{}); err != nil {
		return nil, err
	}

	return func() (bool, error) {
		now, err := admin.Fetch(ctx, n.Path(abi.AdminSocket))
		return err == nil && now.Policy.Revision != before.Policy.Revision, err
	}, nil
}

// untilEdited waits until an edit is in force. It polls veild, so the measured time includes the
// polling.
func untilEdited(mark string, inForce func() (bool, error)) error {
	for began := time.Now(); time.Since(began) < 30*time.Second; {
		if is, err := inForce(); is || err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // Polling costs CPU on the cores that veild uses.
	}
	return fmt.Errorf("edit %s is not in force", mark)
}
