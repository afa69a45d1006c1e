package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/kubeveil/kubeveil/internal/tokenfile"
)

// leaseName is the name of the lease. The Role in manifests/components/sites has it, too.
const leaseName = "veil-site"

// Times of the election: those of the control plane. Another replica takes over within 17 s.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// leader is the replica that holds the lease, or "" if it is not known. replaced is closed when
// another does.
type leader struct {
	identity string
	replaced chan struct{}
}

func newLeader(identity string) *leader {
	return &leader{identity: identity, replaced: make(chan struct{})}
}

// setLeader sets the leader to the result of now. Calls may come in any order.
func (r *replica) setLeader(now func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.led.replaced)
	r.led = newLeader(now())
}

// beside reports whether the leader is another replica on the node of this one.
func (r *replica) beside() (is bool, replaced <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	node, _, named := strings.Cut(r.Identity, "/")
	leads := r.led.identity == r.Identity
	return named && !leads && strings.HasPrefix(r.led.identity, node+"/"), r.led.replaced
}

// lead calls work while this process holds the lease, until ctx ends. work has a context that ends
// when the lease is lost. Two processes that both work for a moment do no harm: each change names
// the version of the object that it replaces, and the API server refuses a second creation. It
// returns an error if the lease is lost.
func (r *replica) lead(ctx context.Context, cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	tokenfile.Renew(cfg)
	cfg.UserAgent, cfg.Timeout = "veil-site", renewDeadline/2
	client, err := coordination.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}

	begun, done := make(chan struct{}), make(chan struct{})
	var e *leaderelection.LeaderElector
	e, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{Client: client,
			LeaseMeta:  metav1.ObjectMeta{Namespace: r.Namespace, Name: leaseName},
			LockConfig: resourcelock.ResourceLockConfig{Identity: r.Identity}},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				close(begun)
				defer close(done)
				r.Log.Info("this replica leads", "identity", r.Identity)
				r.work(ctx)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				r.health.Done(stepLeader)
				r.setLeader(func() string { return e.GetLeader() })
				r.Log.Info("the leader changed", "leader", leader)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}

	e.Run(klog.NewContext(ctx, klog.Logger{}))
	select {
	case <-begun:
		<-done
	default:
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("the lease was lost: the API server did not answer in time, or another " +
		"replica leads")
}
