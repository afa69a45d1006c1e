package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/config"
)

// reloadEvery is how often the configuration is read again. A mounted ConfigMap
// is replaced by a link that moves, which no watch on the file would see.
const reloadEvery = 2 * time.Second

// watchConfig takes over what may change while the daemon runs: the MTU, masquerading.
// Other changes are named and wait for a restart, which costs no packet.
func (a *Agent) watchConfig(ctx context.Context) error {
	if a.reload == nil {
		return nil
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			a.takeConfig(a.reload())
		}
	}
}

// takeConfig takes over of next what can be. What cannot, and that it is not valid, is a
// problem that is shown until the file is right again, or as it was.
func (a *Agent) takeConfig(next config.Config, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.noteConfig(fmt.Sprintf("the configuration was changed and is not valid: the old one "+
			"stays in force, and a restart of veild would fail: %v", err))
		return
	}
	live := a.cfg
	live.MTU, live.Masquerade = next.MTU, next.Masquerade
	if len(config.Changed(live, a.cfg)) > 0 {
		a.cfg = live
		a.log.Info("configuration changed", "mtu", live.MTU, "masquerade", live.Masquerade)
		a.poke()
	}
	problem := ""
	if keys := config.Changed(live, next); len(keys) > 0 {
		problem = fmt.Sprintf("the configuration was changed in %s, which is not in force before "+
			"a restart of veild (kubectl -n kube-system rollout restart daemonset/veild); no "+
			"packet is lost", strings.Join(keys, ", "))
	}
	a.noteConfig(problem)
}

// noteConfig remembers what is wrong with the file, nothing when problem is empty, and logs it when
// it is new. Whoever calls it holds the lock.
func (a *Agent) noteConfig(problem string) {
	if problem != "" && problem != a.configProblem {
		a.log.Warn("not as it should be", "problem", problem)
	}
	a.configProblem = problem
}
