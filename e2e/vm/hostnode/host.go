package hostnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Setup describes the host that becomes a node, and how Kubeveil is installed on it.
type Setup struct {
	// Control is the control plane's host. Addrs are its addresses. Outside are the gateways of the
	// network.
	Control        *lab.Host
	Addrs, Outside []netip.Addr
	// Program returns the path of a program of the lab.
	Program func(name string) string
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string
	// Translates and Enforces report whether Kubeveil translates services and enforces policies.
	Translates, Enforces bool
	// HostRouting is a setting of veild. ProxyMode and ClusterCIDR are settings of kube-proxy.
	HostRouting, ProxyMode, ClusterCIDR string
	Log                                 *slog.Logger
}

// Host makes the control plane's host a node of the cluster without a kubelet. It does the work of
// a kubelet for the pods of Kubeveil and kube-proxy: it maintains the Node and its lease, writes
// configuration and tokens to files, runs the programs while their DaemonSets exist, and runs the
// clean-up when manifests/uninstall is applied.
type Host struct {
	o       Setup
	client  kubernetes.Interface
	node    types.UID
	beat    time.Time // the next heartbeat
	ready   bool      // the last report
	tokens  map[string]*token
	daemons []*daemon
	cleaned types.UID // the DaemonSet for which the host was cleaned up
	last    string    // problem that was logged

	cancel context.CancelFunc
	done   chan struct{}
}

// daemon is a program that runs while the DaemonSet set exists. If set is empty, the program always
// runs.
type daemon struct {
	name, set string
	args      []string
	// rolls reports whether a change of the DaemonSet restarts the program.
	rolls      bool
	uid        types.UID
	generation int64
	process    *lab.Process
}

const (
	// Name is the name of the control plane's host and of its Node.
	Name = "control"
	// lookEach is the interval at which the cluster is polled. A kubelet would watch instead.
	lookEach = 2 * time.Second
	// beatEach is the interval at which a kubelet renews its lease.
	beatEach = 10 * time.Second
	// TermPatience is the time that a program has to end after SIGTERM. It equals the default grace
	// period of pods.
	TermPatience = 30 * time.Second
)

// Start registers the Node and then maintains the host in the background until Stop.
func Start(ctx context.Context, o Setup) (*Host, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = 50, 100
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	h := &Host{o: o, client: client, tokens: map[string]*token{},
		done: make(chan struct{})}
	h.daemons = h.programs()
	if err := h.prepare(ctx); err != nil {
		return nil, fmt.Errorf("node %s: %w", Name, err)
	}
	// The API server creates the namespace of leases during its first seconds.
	if err := lab.Until(ctx, time.Minute, func() error { return h.look(ctx) }); err != nil {
		return nil, fmt.Errorf("node %s: %w", Name, err)
	}
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h.cancel = cancel
	go h.keep(background)
	return h, nil
}

// programs returns the programs that run on the host, in the order in which they are started.
func (h *Host) programs() []*daemon {
	// veild requests a device from veil-wg.
	ours := []*daemon{{name: "veil-wg", set: "veil-wg"},
		{name: "veild", set: "veild", rolls: true, args: h.o.VeildArguments()}}
	if h.o.Translates {
		return ours
	}
	return append([]*daemon{{name: "kube-proxy", args: h.proxyArguments()}}, ours...)
}

// prepare makes the settings that an administrator makes on a machine before it joins.
func (h *Host) prepare(ctx context.Context) error {
	host := h.o.Control
	err := host.Sysctl("net/ipv4/ip_forward", "1", "net/ipv6/conf/all/forwarding", "1",
		"net/ipv4/conf/all/rp_filter", "1", "net/ipv4/conf/default/rp_filter", "1")
	if err != nil {
		return err
	}
	for _, a := range h.o.Outside {
		if err := host.IP(ctx, fmt.Sprintf("route add default via %s dev eth0", a)); err != nil {
			return err
		}
	}
	return nil
}

// keep runs look at every tick until Stop. While the API server cannot be reached, the programs
// keep running.
func (h *Host) keep(ctx context.Context) {
	defer close(h.done)
	_ = poll.Each(ctx, lookEach, func(time.Time) {
		problem := ""
		if err := h.look(ctx); err != nil && ctx.Err() == nil {
			problem = err.Error()
		}
		if problem != h.last {
			h.o.Log.Debug("node without a kubelet", "node", Name, "err", problem)
			h.last = problem
		}
	})
}

// Stop ends the background work. The programs end with the host. Stop does nothing if h is nil.
func (h *Host) Stop() {
	if h != nil {
		h.cancel()
		<-h.done
	}
}

// look updates the Node and the programs according to the state of the cluster.
func (h *Host) look(ctx context.Context) error {
	if ready := h.networkReady(); time.Now().After(h.beat) || ready != h.ready {
		if err := h.heartbeat(ctx, ready); err != nil {
			return err
		}
		h.beat, h.ready = time.Now().Add(beatEach), ready
	}
	var errs []error
	for _, d := range h.daemons {
		errs = append(errs, h.follow(ctx, d))
	}
	return errors.Join(append(errs, h.cleanUp(ctx))...)
}

// follow starts, restarts or ends a program according to its DaemonSet.
func (h *Host) follow(ctx context.Context, d *daemon) error {
	wanted, generation := d.uid, int64(0)
	if d.set != "" {
		set, err := h.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, d.set,
			metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		wanted, generation = "", 0
		if err == nil && set.DeletionTimestamp == nil {
			wanted, generation = set.UID, set.Generation
		}
	}

	running := d.process != nil && d.process.Running()
	if running && (d.uid != wanted || d.rolls && d.generation != generation) {
		if err := d.end(ctx); err != nil {
			return err
		}
		running = false
	}

	if d.set != "" && wanted == "" {
		return nil
	}
	if err := h.mount(ctx, d.name); err != nil || running {
		return err
	}
	p, err := h.o.Control.Start(ctx, h.o.Program(d.name), d.args...)
	if err != nil {
		return err
	}

	d.process, d.uid, d.generation = p, wanted, generation
	return nil
}

// end ends the program as a kubelet does: by SIGTERM, and after TermPatience by SIGKILL.
func (d *daemon) end(ctx context.Context) error {
	if err := d.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, TermPatience)
	defer cancel()
	// The exit status does not matter.
	_ = d.process.Wait(bounded)
	return d.process.Kill(ctx)
}

// cleanUp runs `veild cleanup` once for each DaemonSet of manifests/uninstall that it finds. Before
// that it ends programs whose DaemonSets were deleted since look read them: a running veil-wg makes
// its folder again.
func (h *Host) cleanUp(ctx context.Context) error {
	set, err := h.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "kubeveil-cleanup",
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && set.UID == h.cleaned {
		return nil
	}
	for _, d := range h.daemons {
		if err == nil {
			err = h.follow(ctx, d)
		}
	}
	if err != nil {
		return err
	}
	if _, err := h.o.Control.Exec(ctx, h.o.Program("veild"), "cleanup",
		"--config="+veildConfig, "--node="+Name); err != nil {
		return err
	}
	h.cleaned = set.UID
	return nil
}

// networkReady reports whether a CNI configuration exists. On other nodes the container runtime
// reports this to the kubelet.
func (h *Host) networkReady() bool {
	found, err := filepath.Glob(filepath.Join(h.o.Control.Disk(), abi.CNIConfDir,
		"*.conflist"))
	return err == nil && len(found) > 0
}

// readyCondition returns the Node's condition Ready. Its reason has the values that a kubelet uses.
// The time of the last transition is taken from before if the status has not changed.
func readyCondition(ready bool, before []corev1.NodeCondition) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Reason: "KubeletNotReady", Message: "no CNI configuration"}
	if ready {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "KubeletReady",
			"there is a CNI configuration"
	}
	c.LastHeartbeatTime = metav1.Now()
	c.LastTransitionTime = c.LastHeartbeatTime
	for _, b := range before {
		if b.Type == c.Type && b.Status == c.Status {
			c.LastTransitionTime = b.LastTransitionTime
		}
	}
	return c
}

// WriteFile replaces a file of the host if its content differs.
func (h *Host) WriteFile(path string, content []byte) error {
	path = h.o.Control.Path(path)
	if now, err := os.ReadFile(path); err == nil && string(now) == string(content) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
