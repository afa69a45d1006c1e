package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/bench/tunnellog"
	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/e2e/lab/traffic"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Parts that measure a quantity in place of a scenario.
const partNodes, partChange, partRemove, partSilent = "nodes", "change", "remove", "silent"

// Cases of these parts.
const (
	caseNodesMemory  = partNodes + "_memory"
	caseChangeCPU    = partChange + "_processor"
	caseChangeDevice = partChange + "_device"
	caseRemoveAdd    = partRemove + "_add"
	caseRemoveLost   = partRemove + "_lost"
	caseSilentCPU    = partSilent + "_processor"
	caseSilentLater  = partSilent + "_later"
	caseSilentMemory = partSilent + "_memory"
)

// nodes starts the programs of a second real node while there are no services, and measures the
// peak of veild's memory. Then it ends the programs.
func (s *run) nodes(ctx context.Context) error {
	programs := []string{"veil-wg", "veild"}
	for _, name := range programs {
		if _, err := s.second.StartProgram(ctx, name); err != nil {
			return err
		}
	}
	if err := errors.Join(s.second.WaitReady(ctx), s.equalAt(ctx, s.second)); err != nil {
		return err
	}
	peak, err := load.PeakMiB(s.second.Program("veild").PID())
	if err != nil {
		return err
	}
	s.Add(caseNodesMemory, fmt.Sprintf("%d nodes without services: peak of veild's memory", s.Nodes),
		bench.MiB, peak)
	for _, name := range programs {
		if err := s.second.Program(name).Term(ctx); err != nil {
			return err
		}
	}
	return nil
}

// changes is the number of changed nodes of part change, and changePause the time between two of
// them, so that each has a turn of its own.
const changes, changePause = 100, 200 * time.Millisecond

// change changes the keys of nodes, one after the other. It measures veild's CPU time for each,
// without that of an idle veild, and the time from the event to the device.
func (s *run) change(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	pid := s.node.Program("veild").PID()
	at := func() (time.Duration, time.Time, error) {
		spent, err := load.ProcessCPU(pid)
		return spent, time.Now(), err
	}
	if err := pause(ctx, s.Settle); err != nil {
		return err
	}
	idle, began, err := at()
	if err != nil {
		return err
	}
	if err := pause(ctx, changes*changePause); err != nil {
		return err
	}
	before, quiet, err := at()
	if err != nil {
		return err
	}
	logged, err := tunnellog.Read(s.node)
	if err != nil {
		return err
	}

	for i := range changes {
		if err := pause(ctx, time.Until(quiet.Add(time.Duration(i)*changePause))); err != nil {
			return err
		}
		if err := s.renewKey(ctx, i%s.Nodes); err != nil {
			return err
		}
	}
	if err := s.equal(ctx); err != nil {
		return err
	}
	after, ended, err := at()
	if err != nil {
		return err
	}

	all, err := tunnellog.Read(s.node)
	if err != nil {
		return err
	}
	var waits []float64
	for _, c := range all[len(logged):] {
		waits = append(waits, bench.Millis(c.Waited))
	}
	if len(waits) < changes/2 {
		return fmt.Errorf("%d turns changed %d peers", len(waits), changes)
	}
	unchanged := (before - idle).Seconds() / quiet.Sub(began).Seconds() * ended.Sub(quiet).Seconds()
	s.Add(caseChangeCPU, "one node has a new key: CPU of veild", bench.Millisecond,
		1000*((after-before).Seconds()-unchanged)/changes)
	s.Add(caseChangeDevice, "one node has a new key: from the event to the device, P99",
		bench.Millisecond, bench.Quantile(waits, 0.99))
	return nil
}

// renewKey changes the key of node i to one of its next epoch.
func (s *run) renewKey(ctx context.Context, i int) error {
	n := nodeOf(i)
	key := wgkey.Public{byte(i), byte(i >> 8), 1, 2, 3}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"keys": []any{map[string]any{
		"epoch": 1, "publicKey": key.String()}}}})
	if err != nil {
		return err
	}
	return s.patchVeilNode(ctx, n.Name, patch)
}

// adds is the number of ADDs before nodes are removed, and the least number meanwhile.
const adds = 100

// remove deletes half of the nodes while pods are added, and while a stream of datagrams passes the
// tunnel to a second real node. The nodes come back and are deleted again until there are enough
// ADDs.
func (s *run) remove(ctx context.Context) (err error) {
	if err := s.start(ctx); err != nil {
		return err
	}
	lost, end, err := s.stream(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	before, err := s.addPods(ctx, "before", func(i int) bool { return i < adds })
	if err != nil {
		return err
	}

	var during []float64
	removals := 0
	for ; len(during) < adds; removals++ {
		took, err := s.removeHalf(ctx)
		if err != nil {
			return err
		}
		during = append(during, took...)
		if err := s.createNodes(ctx, 0, s.Nodes/2); err != nil {
			return err
		}
		if err := s.equal(ctx); err != nil {
			return err
		}
	}
	missing, err := lost()
	if err != nil {
		return err
	}
	s.Progress("%d ADDs before and %d while %d nodes are removed %d times", len(before),
		len(during), s.Nodes/2, removals)
	s.Add(caseRemoveLost, "half of the nodes are removed: lost datagrams of a stream", bench.Count,
		float64(missing))
	return s.Compare(caseRemoveAdd, "half of the nodes are removed: ADD, P99", bench.Millisecond,
		[]float64{bench.Quantile(during, 0.99)}, []float64{bench.Quantile(before, 0.99)}, "before")
}

// removeHalf deletes half of the nodes, and adds pods until the kernel has no more of them. It
// returns the durations of ADD.
func (s *run) removeHalf(ctx context.Context) (took []float64, err error) {
	done := make(chan error, 1)
	go func() {
		err := s.deleteNodes(ctx, 0, s.Nodes/2)
		if err == nil {
			err = s.equal(ctx)
		}
		done <- err
	}()
	var removed error
	took, err = s.addPods(ctx, "during", func(int) bool {
		select {
		case removed = <-done:
			return false
		default:
			return true
		}
	})
	return took, errors.Join(err, removed)
}

// addPods adds pods, and deletes each, while more returns true. It returns the durations of ADD.
func (s *run) addPods(ctx context.Context, name string, more func(i int) bool) (took []float64,
	err error) {
	for i := 0; more(i); i++ {
		pod, err := s.node.AddPod(ctx, fmt.Sprintf("%s%d", name, i), lab.PodOptions{})
		if err != nil {
			return took, err
		}
		took = append(took, bench.Millis(pod.Added))
		if err := pod.Del(ctx); err != nil {
			return took, err
		}
	}
	return took, nil
}

// stream starts a stream of datagrams from a pod of the node to a pod of a second node. lost ends
// it and returns the number of datagrams that did not arrive. end removes the second node's pod.
func (s *run) stream(ctx context.Context) (lost func() (uint64, error), end func() error,
	err error) {
	for _, name := range []string{"veil-wg", "veild"} {
		if _, err := s.second.StartProgram(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	if err := errors.Join(s.second.WaitReady(ctx), s.equal(ctx)); err != nil {
		return nil, nil, err
	}
	from, err := s.node.AddPod(ctx, "sends", lab.PodOptions{})
	if err != nil {
		return nil, nil, err
	}
	to, err := s.second.AddPod(ctx, "receives", lab.PodOptions{})
	if err != nil {
		return nil, nil, err
	}
	sink, err := traffic.Sink(ctx, to)
	if err != nil {
		return nil, nil, err
	}
	// The first packet waits for a handshake, and a pod's first packets for the other node's table.
	if _, err := traffic.Echo(ctx, to); err != nil {
		return nil, nil, err
	}
	err = lab.Until(ctx, time.Minute, func() error {
		_, err := traffic.Send(ctx, from, traffic.Exchange{To: to.Addr(false)})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	source, err := traffic.Source(ctx, from, to.Addr(false), 5*time.Millisecond)
	if err != nil {
		return nil, nil, err
	}

	lost = func() (uint64, error) {
		if err := source.Term(ctx); err != nil {
			return 0, err
		}
		var got traffic.Drained
		err := sink.Result(ctx, &got)
		if err == nil && got.Received == 0 {
			err = errors.New("no datagram of the stream arrived")
		}
		return got.Missing, err
	}
	return lost, func() error { return errors.Join(from.Del(ctx), to.Del(ctx)) }, nil
}

// silentFor is the time for which WireGuard tries to reach a peer that does not answer
// (REKEY_ATTEMPT_TIME).
const silentFor = 90 * time.Second

// silent sends a packet to each node, none of which exists, and measures veil-wg while it initiates
// handshakes, and later.
func (s *run) silent(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	measure := func(d time.Duration) (float64, error) {
		before, err := s.processor("veil-wg")
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if err := pause(ctx, d); err != nil {
			return 0, err
		}
		after, err := s.processor("veil-wg")
		return 100 * (after - before).Seconds() / time.Since(began).Seconds(), err
	}

	err := s.node.Do(func() error {
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		for i := range s.Nodes {
			to := netip.AddrPortFrom(nodeOf(i).PodPrefixes[0].Addr().Next(), abi.TunnelPort+1)
			if _, err := conn.WriteToUDPAddrPort([]byte("silent"), to); err != nil {
				return fmt.Errorf("send to %s: %w", to, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	share, err := measure(silentFor)
	if err != nil {
		return err
	}
	mib, err := s.resident("veil-wg")
	if err != nil {
		return err
	}
	if err := pause(ctx, s.Settle); err != nil {
		return err
	}
	later, err := measure(s.Idle)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d peers that never answer: ", s.Nodes)
	s.Add(caseSilentCPU, what+"CPU of veil-wg for 90 s, of a core", bench.Percent, share)
	s.Add(caseSilentLater, what+"CPU of veil-wg later, of a core", bench.Percent, later)
	s.Add(caseSilentMemory, what+"memory of veil-wg", bench.MiB, mib)
	return nil
}

// patchVeilNode merges a patch into a VeilNode.
func (s *run) patchVeilNode(ctx context.Context, name string, patch []byte) error {
	_, err := s.lab.Control.Dynamic.Resource(apiobject.VeilNodes).Patch(ctx, name,
		types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
