package policyfeed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kubeveil/kubeveil/pkg/kube/api"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Denials creates Events for the policies that deny more than their text does, for pods of this
// node.
type Denials struct {
	server *api.Server
	node   string
	again  time.Duration // interval at which an Event is created again while its denial holds
	// spread is the time over which nodes spread their requests about one Event.
	spread  time.Duration
	changed chan struct{} // holds a token if the denials changed

	mu  sync.Mutex
	all []policy.Denial
}

// NewDenials returns Denials for the node called node, which create Events at s.
func NewDenials(s *api.Server, node string) *Denials {
	return &Denials{server: s, node: node, again: 30 * time.Minute, spread: 10 * time.Second,
		changed: make(chan struct{}, 1)}
}

// Set sets the denials. Run creates an Event for each. Set returns at once. The caller must not
// change all later.
func (d *Denials) Set(all []policy.Denial) {
	d.mu.Lock()
	same := slices.Equal(d.all, all)
	d.all = all
	d.mu.Unlock()
	if !same {
		api.Poke(d.changed)
	}
}

// Limits of the token bucket per namespace, which bounds the Events of one node about policies of
// the namespace. Policies without a namespace share one bucket.
const (
	eventBurst = 20
	eventEvery = 10 * time.Second
)

// Run creates Events until ctx ends: one per revision of a policy, and again when the API server
// may have removed it. All nodes try to create the same Event, at different times, and only the
// first succeeds.
func (d *Denials) Run(ctx context.Context) error {
	s := &eventSayer{denials: d, said: map[policy.Name]saidEvent{},
		perSecond: float32(time.Second) / float32(eventEvery)}
	for {
		wait := s.say(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.changed:
		case <-time.After(wait):
		}
	}
}

// eventSayer creates Events and records which it has created. Only Denials.Run uses it.
type eventSayer struct {
	denials *Denials
	said    map[policy.Name]saidEvent
	// buckets holds the token buckets by namespace. Nil means empty.
	buckets   map[string]*eventBucket
	perSecond float32
	// refused holds the last error of each namespace in which the API server refused an Event. It
	// delays no other namespace.
	refused map[string]error
}

type eventBucket struct {
	flowcontrol.RateLimiter
	used time.Time
}

// accept reports whether an Event may be created in a namespace now, and if so uses a token. It
// removes buckets that are full again.
func (s *eventSayer) accept(namespace string, now time.Time) bool {
	maps.DeleteFunc(s.buckets, func(_ string, b *eventBucket) bool {
		return now.Sub(b.used) > eventBurst*eventEvery
	})
	b := s.buckets[namespace]
	if b == nil {
		if s.buckets == nil {
			s.buckets = map[string]*eventBucket{}
		}
		b = &eventBucket{flowcontrol.NewTokenBucketRateLimiter(s.perSecond, eventBurst), now}
		s.buckets[namespace] = b
	}
	if !b.TryAccept() {
		return false
	}
	b.used = now
	return true
}

// eventProblem is the subject of the problem that Events cannot be created.
const eventProblem = "create Events at policies"

// saidEvent is the schedule of the Event for one revision of a policy.
type saidEvent struct {
	object policy.Object
	due    time.Time // time of the next request
}

// say creates the due Events, and returns the time until the next one is due.
func (s *eventSayer) say(ctx context.Context) (wait time.Duration) {
	of := s.denials
	of.mu.Lock()
	all := of.all
	of.mu.Unlock()

	said := make(map[policy.Name]saidEvent, len(all))
	for _, d := range all {
		if have, has := s.said[d.Name]; has {
			said[d.Name] = have
		}
	}
	s.said = said

	wait = of.again
	refused := map[string]error{}
	for _, d := range all {
		now := time.Now()
		have, has := s.said[d.Name]
		if !has || have.object != d.Object {
			have = saidEvent{d.Object, now.Add(of.delay(d.Object))}
			s.said[d.Name] = have
		}
		if left := have.due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		if refused[d.Namespace] != nil {
			continue
		}
		if !s.accept(d.Namespace, now) {
			wait = min(wait, eventEvery)
			if err := s.refused[d.Namespace]; err != nil {
				refused[d.Namespace] = err
			}
			continue
		}
		if err := of.create(ctx, d, now); err != nil {
			refused[d.Namespace] = err
			wait = min(wait, of.server.Times.RetryMax)
			continue
		}
		s.said[d.Name] = saidEvent{d.Object, now.Add(of.again)}
	}
	s.refused = refused
	of.server.Report(eventProblem, s.firstRefusal())
	return wait
}

// firstRefusal returns the error of the first namespace by name whose Events were refused.
func (s *eventSayer) firstRefusal() error {
	for _, namespace := range slices.Sorted(maps.Keys(s.refused)) {
		return s.refused[namespace]
	}
	return nil
}

// delay returns how long this node waits before it creates the Event for a revision. Nodes wait for
// different times, because all see a change of a policy at the same moment.
func (d *Denials) delay(o policy.Object) time.Duration {
	return api.Spread(d.spread, d.node, fmt.Sprintf("%s/%d", o.UID, o.Generation))
}

// eventReason is the reason of the Events, by which programs can select them.
const eventReason = "DeniesMoreThanWritten"

// maxMessage bounds the message of an Event, bytes (events.k8s.io/v1: 1024).
const maxMessage = 1000

// coreEvent holds the fields of a core/v1 Event that are set.
type coreEvent struct {
	metav1.TypeMeta    `json:",inline"`
	metav1.ObjectMeta  `json:"metadata"`
	InvolvedObject     eventObject `json:"involvedObject"`
	Reason             string      `json:"reason"`
	Message            string      `json:"message"`
	Source             eventSource `json:"source"`
	FirstTimestamp     metav1.Time `json:"firstTimestamp"`
	LastTimestamp      metav1.Time `json:"lastTimestamp"`
	Count              int32       `json:"count"`
	Type               string      `json:"type"`
	ReportingComponent string      `json:"reportingComponent"`
	ReportingInstance  string      `json:"reportingInstance"`
}

type eventObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

type eventSource struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// eventOf returns the Event for a denial. Its name depends only on the revision of the policy. So
// the API server refuses a second Event from another node or from a restarted daemon.
func eventOf(node string, d policy.Denial, now time.Time) *coreEvent {
	kind := object.NetworkPolicies
	namespace := d.Namespace
	if namespace == "" {
		// The API server requires that Events about cluster-scoped objects are in this namespace.
		namespace = metav1.NamespaceDefault
		kind = object.ClusterPolicies
	}
	about := eventObject{APIVersion: kind.Version.String(), Kind: kind.Kind, Namespace: d.Namespace,
		Name: d.Name.Name, UID: d.UID}

	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d", d.UID, d.Generation))
	message := fmt.Sprintf("On node %s: %s", node, d.Problem)
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	at := metav1.NewTime(now)
	return &coreEvent{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name: "kubeveil-" + hex.EncodeToString(sum[:10])},
		InvolvedObject: about, Reason: eventReason, Message: message, Type: "Warning",
		Source:         eventSource{"veild", node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		ReportingComponent: object.VeilNodeGroup + "/veild", ReportingInstance: node}
}

// create creates the Event for a denial. It returns nil if the Event exists, or if the namespace is
// being deleted.
func (d *Denials) create(ctx context.Context, of policy.Denial, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, d.server.Times.Request)
	defer cancel()
	e := eventOf(d.node, of, now)
	err := d.server.Create(ctx, object.Events.In(e.Namespace), e)
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err),
		apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return nil
	case err != nil:
		return api.Explain("create", object.Events, err)
	}
	d.server.Log.Info("created an Event: a policy denies more than is written", "namespace",
		of.Namespace, "policy", of.Name.Name, "problem", of.Problem)
	return nil
}
