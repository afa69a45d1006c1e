package agent

import (
	"context"
	"reflect"
	"time"
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
	var complained string
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		next, err := a.reload()
		if err != nil {
			if err.Error() != complained {
				a.log.Warn("the configuration was changed and is not valid; the old one stays in force", "error", err)
				complained = err.Error()
			}
			continue
		}
		a.mu.Lock()
		now := a.cfg
		live := now
		live.MTU, live.Masquerade = next.MTU, next.Masquerade
		a.cfg = live
		a.mu.Unlock()
		if !reflect.DeepEqual(live, now) {
			a.log.Info("configuration changed", "mtu", live.MTU, "masquerade", live.Masquerade)
			a.poke()
		}
		complained = ""
		if !reflect.DeepEqual(live, next) {
			complained = "restart"
			a.noteRestart()
		}
	}
}

// noteRestart says once that a restart is needed.
func (a *Agent) noteRestart() {
	a.restartOnce.Do(func() {
		a.log.Warn("the configuration was changed in more than mtu and masquerade: restart veild to take the rest over; no packet is lost")
	})
}
