package remote

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// started returns a pod that took this long to become Ready.
func started(took time.Duration) *corev1.Pod {
	begin := metav1.NewTime(time.Unix(1_800_000_000, 0))
	return &corev1.Pod{Status: corev1.PodStatus{
		StartTime: &begin,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(begin.Add(took))}},
	}}
}

func TestPaceFollowsTheSlowestPod(t *testing.T) {
	for name, tt := range map[string]struct {
		pods []*corev1.Pod
		want float64
	}{
		"no pod yet":           {nil, 1},
		"quick ones":           {[]*corev1.Pod{started(time.Second), started(usualStart)}, 1},
		"a slow one":           {[]*corev1.Pod{started(3 * usualStart), started(time.Second)}, 3},
		"one that is broken":   {[]*corev1.Pod{started(time.Hour)}, slowest},
		"no time of beginning": {[]*corev1.Pod{{}}, 1},
	} {
		var p Pace
		for _, pod := range tt.pods {
			p.learn(pod)
		}
		if got := p.Factor(); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// The limit of a wait grows when a slow pod is observed during the wait.
func TestUntilFollowsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		began := time.Now()
		err := Until(WithPace(t.Context(), &p), "it", time.Minute, func(ctx context.Context) error {
			if time.Since(began) > 30*time.Second {
				p.observe(3 * usualStart)
			}
			return errors.New("not yet")
		})
		if took := time.Since(began); err == nil || took != 3*time.Minute {
			t.Errorf("%v after %v, want an error after 3m", err, took)
		}
	})
	if got := Patience(t.Context(), time.Minute); got != time.Minute {
		t.Errorf("without a pace: %v", got)
	}
}
