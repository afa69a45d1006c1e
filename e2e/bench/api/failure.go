package api

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// suffixWorst is of a case with one value, the worst of all times.
const suffixWorst = "_worst"

// fault is something that happens to API servers.
type fault struct {
	name, title string
	// begin makes it happen and returns since when clients wait; end takes it back.
	begin, end func(*broken, context.Context) (time.Time, error)
}

var faults = []fault{
	{"power", "one of two API servers loses its power", (*broken).unplug, (*broken).plug},
	{"stop", "one of two API servers is stopped, and its kernel acknowledges", (*broken).stop,
		(*broken).resume},
	{"back", "both API servers lose their power, and one comes back", (*broken).unplugAll,
		(*broken).plug},
}

func caseFailure(f fault, kind string) string { return fmt.Sprintf("failure_%s_%s", f.name, kind) }

// broken is a lab with a node, a pod, and two API servers.
type broken struct {
	lab  *lab.Lab
	node *lab.Node
	pod  *lab.Pod
	// service is the address of the API servers' service, dir has credentials of a client.
	service netip.AddrPort
	dir     string
	// holders are the processes whose clients are held: one in the pod and one on the node.
	holders []*lab.Process
}

// servedWithin is how long a client may wait: client-go by itself finds a dead connection after
// 45 s.
const servedWithin = 75 * time.Second

// failure measures how long clients that hold connections wait after each fault.
func (s *suite) failure(ctx context.Context) (err error) {
	b, err := newBroken(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.lab.Close()) }()

	for _, f := range faults {
		waits := map[string][]float64{}
		for i := range s.Faults {
			took, err := b.suffer(ctx, f)
			if err != nil {
				return fmt.Errorf("%s, %d: %w", f.name, i+1, err)
			}
			text := ""
			for _, k := range kinds {
				waits[k.name] = append(waits[k.name], took[k.name])
				text += fmt.Sprintf(", %s %.0f ms", k.name, took[k.name])
			}
			s.Progress("%s %d/%d%s", f.name, i+1, s.Faults, text)
		}
		for _, k := range kinds {
			name := caseFailure(f, k.name)
			s.result.Cases = append(s.result.Cases,
				bench.Case{Name: name, Unit: bench.Millisecond, Ours: bench.Summarize(waits[k.name])},
				bench.Case{Name: name + suffixWorst, Unit: bench.Millisecond,
					Ours: bench.Summarize([]float64{slices.Max(waits[k.name])})})
			s.labels[name] = fmt.Sprintf("First good request of %s: %s", k.title, f.title)
			s.labels[name+suffixWorst] = s.labels[name] + ", the worst"
		}
	}
	return nil
}

func newBroken(ctx context.Context) (*broken, error) {
	first := netip.AddrPortFrom(lab.IPv4.Underlay(lab.ControlByte)[0].Addr(), lab.APIPort)
	l, err := lab.New(ctx, lab.Options{Family: lab.IPv4, APIServers: 2, Nodes: 1,
		VeildConfig: map[string]any{"serviceProxy": "ebpf", "services": map[string]any{
			"limits":     map[string]any{"backendSlots": 1 << 16},
			"apiServers": []string{first.String()}}}})
	if err != nil {
		return nil, err
	}
	b := &broken{lab: l, node: l.Nodes()[0], dir: filepath.Join(l.Dir, "bench")}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return b, nil
}

func (b *broken) prepare(ctx context.Context) (err error) {
	if b.pod, err = b.node.AddPod(ctx, "client", lab.PodOptions{}); err != nil {
		return err
	}
	api, err := b.lab.Control.Client.CoreV1().Services("default").Get(ctx, "kubernetes",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(api.Spec.ClusterIP)
	if err != nil {
		return err
	}
	b.service = netip.AddrPortFrom(addr, uint16(api.Spec.Ports[0].Port))

	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	tls := b.lab.Control.Config.TLSClientConfig
	for name, text := range map[string][]byte{"ca.crt": tls.CAData, "client.crt": tls.CertData,
		"client.key": tls.KeyData} {
		if err := os.WriteFile(filepath.Join(b.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// suffer lets a fault happen to held clients, and returns for each kind how long the client waited
// that waited longest, milliseconds.
func (b *broken) suffer(ctx context.Context, f fault) (took map[string]float64, err error) {
	if err := b.up(ctx, 2); err != nil {
		return nil, err
	}
	if err := b.hold(ctx); err != nil {
		return nil, err
	}

	since, err := f.begin(b, ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, e := f.end(b, context.WithoutCancel(ctx))
		err = errors.Join(err, e)
	}()
	return b.served(ctx, since)
}

// up waits until so many API servers answer by veild's probes.
func (b *broken) up(ctx context.Context, want int) error {
	return lab.Until(ctx, time.Minute, func() error {
		st, err := telemetry.Fetch(ctx, b.node.Path(abi.AdminSocket))
		if err != nil {
			return err
		}
		if st.Services == nil || len(st.Services.APIServers) != 2 {
			return fmt.Errorf("services %+v", st.Services)
		}
		got := 0
		for _, a := range st.Services.APIServers {
			if a.Up {
				got++
			}
		}
		if got != want {
			return fmt.Errorf("%d API servers answer, want %d: %+v", got, want,
				st.Services.APIServers)
		}
		return nil
	})
}

// hold starts clients, and waits until all hold connections.
func (b *broken) hold(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.holders = nil
	for _, at := range []lab.Place{b.pod, b.node} {
		p, err := at.Start(ctx, "env", childEnv+"=1", self, "hold", b.dir, b.service.String())
		if err != nil {
			return err
		}
		b.holders = append(b.holders, p)
		if err := p.WaitLine(ctx, lineHeld, 30*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// mark makes requests count that begin from now on.
func (b *broken) mark() error {
	var errs []error
	for _, p := range b.holders {
		errs = append(errs, p.Signal(syscall.SIGUSR1))
	}
	return errors.Join(errs...)
}

// served ends the clients once all of them were served.
func (b *broken) served(ctx context.Context, since time.Time) (map[string]float64, error) {
	longest := map[string]float64{}
	for _, p := range b.holders {
		if err := p.WaitLine(ctx, lineServed, servedWithin); err != nil {
			return nil, err
		}
		var millis map[string][]int64
		if err := p.Result(ctx, &millis); err != nil {
			return nil, err
		}
		for kind, all := range millis {
			wait := time.UnixMilli(slices.Max(all)).Sub(since)
			longest[kind] = max(longest[kind], micros(wait)/1000)
		}
	}
	return longest, nil
}

// unplug takes the power from the second server.
func (b *broken) unplug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.lab.Control.Servers[1].Unplug(ctx, true), b.mark())
}

// plug returns the power to all servers, to the first one first.
func (b *broken) plug(ctx context.Context) (time.Time, error) {
	since := time.Now()
	var errs []error
	for _, s := range b.lab.Control.Servers {
		errs = append(errs, s.Unplug(ctx, false))
	}
	return since, errors.Join(errs...)
}

// stop stops the second server's process: its kernel goes on.
func (b *broken) stop(context.Context) (time.Time, error) {
	since := time.Now()
	return since, errors.Join(b.lab.Control.Servers[1].Process.Signal(syscall.SIGSTOP), b.mark())
}

func (b *broken) resume(context.Context) (time.Time, error) {
	return time.Now(), b.lab.Control.Servers[1].Process.Signal(syscall.SIGCONT)
}

// unplugAll takes the power from both servers until veild has seen it, and returns it to the first,
// which listens at once.
func (b *broken) unplugAll(ctx context.Context) (time.Time, error) {
	for _, s := range slices.Backward(b.lab.Control.Servers) {
		if err := s.Unplug(ctx, true); err != nil {
			return time.Time{}, err
		}
	}
	if err := errors.Join(b.mark(), b.up(ctx, 0)); err != nil {
		return time.Time{}, err
	}
	since := time.Now()
	return since, b.lab.Control.Servers[0].Unplug(ctx, false)
}
