package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/node"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

const (
	// leakSuite is the prefix of the name of the namespace with the pods that read uplinks.
	leakSuite = "veilctl-report"
	// startLimit bounds the start of such a pod. endLimit bounds its end after the reading time.
	startLimit = 3 * time.Minute
	endLimit   = 2 * time.Minute
	// clearLimit bounds the removal of the namespace, also after Ctrl-C.
	clearLimit = 6 * time.Minute
	// maxLog bounds the bytes of a pod's answer. shownLeaks bounds its examples of frames in clear.
	maxLog     = 512 << 10
	shownLeaks = 5
	// lookEvery is the interval between two lists of the pods. 10 ms per node are added.
	lookEvery = 2 * time.Second
	// tellEvery is the interval between two lines of progress.
	tellEvery = 30 * time.Second
)

// leakReader reads the uplinks of all nodes. On each node it runs a pod of veild's own image.
type leakReader struct {
	*collector
	section   *result.Section
	namespace string
	// waiting holds the pods that have not answered: the node by the name of its pod.
	waiting map[string]string
	// failed is the error of the last list of the pods; nil if it succeeded.
	failed error
}

// leaks returns the section about frames in clear on the nodes' uplinks. It creates a namespace
// with pods on the host's network, and removes it at the end. The user needs the rights to do so.
func (c *collector) leaks(ctx context.Context) *result.Section {
	s := &result.Section{Name: "leakcheck", Title: "Frames on the nodes' uplinks",
		Text: "What veilctl leakcheck saw on each node: every frame of the interfaces that the " +
			"guard protects or should protect, for " + c.long.String() + ".",
		Head: []string{"node", "frames", "of the tunnel", "with an address of the cluster in clear",
			"read for", "remark"}}
	switch {
	case c.podsErr != nil:
		s.Lacks("all nodes", c.podsErr.Error())
		return s
	case ctx.Err() != nil:
		s.Lacks("all nodes", interrupted)
		return s
	case len(c.veild) == 0:
		s.Lacks("all nodes", "no node has veild")
		return s
	}

	c.say("starting a pod on each of %d nodes that reads the uplinks for %v", len(c.veild), c.long)
	n, err := c.cluster.Namespace(ctx, leakSuite, remote.Privileged)
	if err != nil {
		s.Lacks("all nodes", err.Error())
		return s
	}
	r := &leakReader{collector: c, section: s, namespace: n.Name, waiting: map[string]string{}}
	r.start(ctx)
	r.wait(ctx)

	c.say("removing namespace %s", n.Name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		s.Add(result.Note, "all nodes", "", "", "", "", "namespace "+n.Name+" was not removed: "+err.Error())
	}
	return s
}

// start creates the pods.
func (r *leakReader) start(ctx context.Context) {
	pods := r.cluster.Client.CoreV1().Pods(r.namespace)
	for i, on := range slices.Sorted(maps.Keys(r.veild)) {
		veild := r.veild[on]
		c := slices.IndexFunc(veild.Spec.Containers, func(c corev1.Container) bool {
			return c.Name == "veild"
		})
		switch {
		case ctx.Err() != nil:
			r.section.Lacks(on, interrupted)
			continue
		case c < 0:
			r.section.Lacks(on, noPod)
			continue
		}
		p := leakPod(fmt.Sprintf("leakcheck-%d", i), on, veild.Spec.Containers[c].Image, r.long)
		if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
			r.section.Lacks(on, err.Error())
			continue
		}
		r.waiting[p.Name] = on
	}
}

// leakPod returns a pod that runs veilctl leakcheck once.
func leakPod(name, on, image string, long time.Duration) *corev1.Pod {
	no, yes := false, true
	root, socket := int64(0), corev1.HostPathSocket
	deadline := int64((startLimit + long + endLimit).Seconds())

	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{remote.SuiteLabel: leakSuite}},
		Spec: corev1.PodSpec{
			NodeName: on, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no, ActiveDeadlineSeconds: &deadline,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "leakcheck", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"/usr/local/bin/veilctl", "leakcheck", "--for", long.String(),
					"-o", "json", "--socket", abi.AdminSocket},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsUser: &root,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"},
						Add: []corev1.Capability{"NET_RAW"}},
					SeccompProfile: &corev1.SeccompProfile{
						Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				// Mount only the socket, not its folder: the node's private key is in the folder.
				VolumeMounts: []corev1.VolumeMount{{Name: "socket", MountPath: abi.AdminSocket,
					ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{{Name: "socket", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: abi.AdminSocket, Type: &socket}}}},
		},
	}
}

// wait reads the answer of each pod when the pod ends. It returns when no pod is left, when the
// time is over, or when ctx ends.
func (r *leakReader) wait(ctx context.Context) {
	began, told := time.Now(), time.Now()
	pause := time.NewTicker(lookEvery + time.Duration(len(r.waiting))*10*time.Millisecond)
	defer pause.Stop()

	why := interrupted
	for len(r.waiting) > 0 {
		r.look(ctx, time.Since(began) > startLimit)
		since := time.Since(began)
		if apierrors.IsForbidden(r.failed) || since > startLimit+r.long+endLimit {
			why = "its pod did not end in time"
			if r.failed != nil {
				why = r.failed.Error()
			}
			break
		}
		if time.Since(told) > tellEvery {
			told = time.Now()
			r.say("%d nodes are still reading their uplinks; %v left", len(r.waiting),
				max(0, r.long-since).Round(time.Second))
		}
		if len(r.waiting) == 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-pause.C:
			continue
		}
		break
	}
	for _, on := range slices.Sorted(maps.Values(r.waiting)) {
		r.section.Lacks(on, why)
	}
}

// look reads the answers of the pods that have ended. If late is set, it gives up pods that have
// not started.
func (r *leakReader) look(ctx context.Context, late bool) {
	pods := r.cluster.Client.CoreV1().Pods(r.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if r.failed = err; err != nil {
		return // the next list may succeed
	}

	var g errgroup.Group
	g.SetLimit(verb.NodesAtOnce)
	texts, errs := make([][]byte, len(list.Items)), make([]error, len(list.Items))
	for i, p := range list.Items {
		if r.waiting[p.Name] != "" && ended(p) {
			g.Go(func() error {
				texts[i], errs[i] = readLog(ctx, pods.GetLogs(p.Name, &corev1.PodLogOptions{}))
				return nil
			})
		}
	}
	_ = g.Wait() // no pod returns an error

	for i, p := range list.Items {
		on, waits := r.waiting[p.Name]
		switch {
		case !waits:
			continue
		case ended(p):
			judgeLeaks(r.section, on, texts[i], errors.Join(errs[i], podEnd(p)), r.long)
		case late && p.Status.Phase == corev1.PodPending:
			r.section.Lacks(on, "its pod did not start: "+cluster.PodProblem(p))
		default:
			continue
		}
		delete(r.waiting, p.Name)
	}
}

func ended(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// readLog returns the log of a pod. It bounds the length itself, because the kubelet that sends the
// log may have been taken over.
func readLog(ctx context.Context, request *rest.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, verb.NodeLimit)
	defer cancel()
	log, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return io.ReadAll(io.LimitReader(log, maxLog))
}

// podEnd returns the reason why the kubelet ended a pod, or nil if the pod's program ended by
// itself.
func podEnd(p corev1.Pod) error {
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" {
		return fmt.Errorf("the kubelet ended its pod: %s: %s", p.Status.Reason, p.Status.Message)
	}
	return nil
}

// judgeLeaks adds the row of the node called on. text is the log of the node's pod.
func judgeLeaks(s *result.Section, on string, text []byte, err error, long time.Duration) {
	var r node.LeakReport
	if decodeErr := json.Unmarshal(text, &r); decodeErr != nil {
		reason := strings.TrimPrefix(string(text[:min(len(text), result.MaxCell)]), "veilctl: ")
		if err != nil || reason == "" {
			reason = fmt.Sprint(errors.Join(err, decodeErr))
		}
		s.Lacks(on, reason)
		return
	}

	row := result.Row{Verdict: result.Good, Cells: []string{on, fmt.Sprint(r.Frames),
		fmt.Sprint(r.Tunnel), fmt.Sprint(r.Leaks), fmt.Sprintf("%.0f s", r.Seconds), "links " +
			strings.Join(r.Links[:min(len(r.Links), shownLeaks)], ", ")}}
	switch {
	case r.Leaks > 0:
		row.Verdict, row.Word = result.Bad, "in clear"
	case len(r.Unread) > 0:
		row.Why = "it did not read " + strings.Join(r.Unread[:min(len(r.Unread), shownLeaks)], ", ")
	case r.Dropped > 0:
		row.Why = fmt.Sprintf("%d frames were lost before they were read, so the result proves "+
			"nothing", r.Dropped)
	case r.Frames == 0:
		row.Why = "no frame was seen, so the result proves nothing"
	case r.Seconds < 0.9*long.Seconds():
		row.Why = fmt.Sprintf("its pod read for only %.0f s", r.Seconds)
	}
	if row.Why != "" {
		row.Verdict, row.Cells[5] = result.Unseen, row.Why
	} else if len(r.Unguarded) > 0 && r.Leaks == 0 {
		row.Verdict = result.Note
		row.Cells[5] += "; without the guard: " +
			strings.Join(r.Unguarded[:min(len(r.Unguarded), shownLeaks)], ", ")
	}
	s.Rows = append(s.Rows, row)
	for _, e := range r.Examples[:min(len(r.Examples), shownLeaks)] {
		e.Bytes = nil // they may be a payload in clear
		sample, err := json.Marshal(map[string]any{"node": on, "frame": e})
		if err == nil {
			s.AddSamples([]json.RawMessage{sample})
		}
	}
}
