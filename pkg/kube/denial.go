package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Deny sets which policies deny more than their text does, for pods of this node. RunDenials
// creates an Event for each. Deny returns at once; the caller must not change the denials later.
func (c *Client) Deny(denials []policy.Denial) {
	c.mu.Lock()
	same := slices.Equal(c.denials, denials)
	c.denials = denials
	c.mu.Unlock()
	if !same {
		poke(c.denied)
	}
}

// The token bucket that bounds the Events of one node about policies of one namespace, regardless
// of what tenants write. Policies without a namespace share one bucket.
const (
	eventBurst = 20
	eventEvery = 10 * time.Second
)

// RunDenials creates Events for the denials of Deny until ctx ends: one for each revision of a
// policy, and again when the API server may have forgotten it. All nodes create the same Event, each
// at its own time: the first one succeeds.
func (c *Client) RunDenials(ctx context.Context) error {
	s := &eventSayer{client: c, said: map[policy.Name]saidEvent{},
		perSecond: float32(time.Second) / float32(eventEvery)}
	for {
		wait := s.say(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.denied:
		case <-time.After(wait):
		}
	}
}

// eventSayer creates Events and records which ones it created. It belongs to RunDenials.
type eventSayer struct {
	client *Client
	said   map[policy.Name]saidEvent
	// buckets are by namespace. The zero value is ready.
	buckets   map[string]*eventBucket
	perSecond float32
}

type eventBucket struct {
	flowcontrol.RateLimiter
	used time.Time
}

// accept reports whether an Event may be created in a namespace now. It forgets buckets that are
// full again.
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

// eventProblem is the subject of the problem that is reported when Events cannot be created.
const eventProblem = "create Events at policies"

// saidEvent is the Event for one revision of a policy.
type saidEvent struct {
	object policy.Object
	due    time.Time // of the next request
}

// say creates the Events that are due, and returns when it is to be called again without a change.
func (s *eventSayer) say(ctx context.Context) (wait time.Duration) {
	s.client.mu.Lock()
	denials := s.client.denials
	s.client.mu.Unlock()

	said := make(map[policy.Name]saidEvent, len(denials))
	for _, d := range denials {
		if have, has := s.said[d.Name]; has {
			said[d.Name] = have
		}
	}
	s.said = said

	wait = s.client.times.again
	for _, d := range denials {
		now := time.Now()
		have, has := s.said[d.Name]
		if !has || have.object != d.Object {
			have = saidEvent{d.Object, now.Add(s.client.eventDelay(d.Object))}
			s.said[d.Name] = have
		}
		if left := have.due.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		if !s.accept(d.Namespace, now) {
			wait = min(wait, eventEvery)
			continue
		}
		if err := s.client.createEvent(ctx, d, now); err != nil {
			s.client.report(eventProblem, err)
			return s.client.times.retryMax
		}
		s.said[d.Name] = saidEvent{d.Object, now.Add(s.client.times.again)}
	}
	s.client.report(eventProblem, nil)
	return wait
}

// eventDelay returns how long this node waits until it creates the Event for a revision: all nodes
// see an edit at the same moment.
func (c *Client) eventDelay(o policy.Object) time.Duration {
	object := fmt.Sprintf("%s/%d", o.UID, o.Generation)
	return c.times.eventSpread * time.Duration(share(c.node, object)) / 1024
}

// eventKind is the kind of the objects that createEvent creates; the path depends on the namespace.
var eventKind = kind{what: "events", rule: policyRights,
	version: schema.GroupVersion{Version: "v1"}}

// eventReason is the Event's reason, which programs match.
const eventReason = "DeniesMoreThanWritten"

// maxMessage bounds the message of an Event, bytes (events.k8s.io/v1: 1024).
const maxMessage = 1000

// coreEvent holds the fields of core/v1 Event that are written.
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

// eventOf returns the Event for a denial. Its name depends on the revision of the policy alone: the
// API server refuses a second one, of another node or of a daemon that restarted.
func eventOf(node string, d policy.Denial, now time.Time) *coreEvent {
	about := eventObject{APIVersion: networkingVersion.String(), Kind: "NetworkPolicy",
		Namespace: d.Namespace, Name: d.Name.Name, UID: d.UID}
	namespace := d.Namespace
	if namespace == "" {
		// The API server wants Events about objects of the cluster there.
		namespace = metav1.NamespaceDefault
		about.APIVersion, about.Kind = clusterPolicyKind.version.String(), "ClusterNetworkPolicy"
	}

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
		ReportingComponent: Group + "/veild", ReportingInstance: node}
}

// createEvent creates the Event for a denial, unless it is there. A namespace that is being deleted
// needs none.
func (c *Client) createEvent(ctx context.Context, d policy.Denial, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, c.times.request)
	defer cancel()
	e := eventOf(c.node, d, now)
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode Event: %w", err)
	}
	err = c.rest.Post().AbsPath("/api/v1/namespaces", e.Namespace, "events").SetHeader(
		"Content-Type", "application/json").Body(data).Do(ctx).Error()
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err),
		apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return nil
	case err != nil:
		return explain("create", eventKind, err)
	}
	c.log.Info("created an Event: a policy denies more than is written", "namespace", d.Namespace,
		"policy", d.Name.Name, "problem", d.Problem)
	return nil
}
