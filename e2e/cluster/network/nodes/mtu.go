package nodes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// narrower is the underlay MTU, in bytes, that the case configures temporarily. Tunnels are
// smaller.
const narrower = 1400

// followPatience is the time limit until every node uses a changed configuration. Kubelets refresh
// a mounted ConfigMap within some 90 s.
const followPatience = 3 * time.Minute

// mtusOf is a shell script that prints the MTU of the tunnel and of each pod's link on a node.
const mtusOf = `cat /sys/class/net/veil0/mtu; for n in $(ip netns list | cut -d' ' -f1); do ip netns exec $n cat /sys/class/net/eth0/mtu 2>/dev/null; done; true`

// MTUChanged writes another MTU to the ConfigMap while flows run, and then restores it. Devices and
// the links of running pods must follow both changes.
func MTUChanged(ctx context.Context, s *session.Session) error {
	all, err := s.Load(ctx)
	if err != nil {
		return err
	}
	workers, err := s.Workers(ctx)
	if err != nil {
		return err
	}

	node := workers[0].Name
	before, err := readMTUs(ctx, s, node)
	if err != nil {
		return err
	}

	configs := s.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	original, err := configs.Get(ctx, session.ConfigMap, metav1.GetOptions{})
	if err != nil {
		return err
	}

	write := func(ctx context.Context, text string) error {
		now, err := configs.Get(ctx, session.ConfigMap, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Data["veild.yaml"] = text
		if _, err := configs.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return nudge(ctx, s)
	}

	text := original.Data["veild.yaml"]
	began := time.Now()
	err = write(ctx, text+fmt.Sprintf("\nmtu: %d\n", narrower))
	if err == nil {
		err = followMTU(ctx, s, func(mtu int) bool { return mtu < narrower })
		s.Note("MTU of %s and its pods: %v, then below %d within %.0f s", node, before, narrower,
			time.Since(began).Seconds())
	}

	err = errors.Join(err, write(context.WithoutCancel(ctx), text))
	if err != nil {
		return err
	}
	if err := followMTU(ctx, s, func(mtu int) bool { return mtu == before[0] }); err != nil {
		return err
	}

	return s.Held(ctx, all, session.GapUndisturbed)
}

// nudge annotates the daemons' pods. The kubelets then refresh the mounted ConfigMap now, and not
// within some 90 s.
func nudge(ctx context.Context, s *session.Session) error {
	pods, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx,
		metav1.ListOptions{LabelSelector: session.ComponentLabel + "=" + session.VeildSet})
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"kubeveil.io/looked-at":%q}}}`,
		time.Now().Format(time.RFC3339Nano))
	for _, p := range pods.Items {
		if _, err := s.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name,
			"application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// followMTU waits until the tunnel and all pods of every worker have a wanted MTU.
func followMTU(ctx context.Context, s *session.Session, wanted func(mtu int) bool) error {
	workers, err := s.Workers(ctx)
	if err != nil {
		return err
	}
	return remote.Until(ctx, "MTU of devices and pods", followPatience,
		func(ctx context.Context) error {
			for _, w := range workers {
				got, err := readMTUs(ctx, s, w.Name)
				if err != nil {
					return err
				}
				for _, mtu := range got {
					if !wanted(mtu) {
						return fmt.Errorf("%s and its pods have %v", w.Name, got)
					}
				}
			}
			return nil
		})
}

// readMTUs returns the MTU in bytes of a node's tunnel, and then of each of its pods.
func readMTUs(ctx context.Context, s *session.Session, node string) ([]int, error) {
	out, err := s.Lab.Exec(ctx, node, mtusOf)
	if err != nil {
		return nil, err
	}
	var mtus []int
	for _, word := range strings.Fields(string(out)) {
		mtu, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("MTUs of %s: %w", node, err)
		}
		mtus = append(mtus, mtu)
	}
	if len(mtus) < 2 {
		return nil, fmt.Errorf("MTUs of %s: %v, want the tunnel's and a pod's at least", node, mtus)
	}
	return mtus, nil
}
