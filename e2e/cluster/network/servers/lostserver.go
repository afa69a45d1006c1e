package servers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/e2e/cluster/network/session"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// kubeletTries is the maximum number of starts of a kubelet until it uses the server that will be
// lost. Each start chooses one of two servers.
const kubeletTries = 12

// fault is a way to lose an API server. Its name consists of lower-case words joined by hyphens.
type fault struct {
	name       string
	begin, end func(context.Context, session.APIServer) error
}

// powerLost is the loss of power: no packet comes back, not even ARP.
var powerLost = fault{"power-lost",
	func(ctx context.Context, a session.APIServer) error { return a.Unplug(ctx, true) },
	func(ctx context.Context, a session.APIServer) error { return a.Unplug(ctx, false) }}

// stopped is a server that does not answer, although its kernel acknowledges packets.
var stopped = fault{"stopped",
	func(_ context.Context, a session.APIServer) error { return a.Freeze(true) },
	func(_ context.Context, a session.APIServer) error { return a.Freeze(false) }}

// ServerLost makes kubelets use a second API server by its own address. services.apiFrontends makes
// that address a frontend of both servers. The case then makes that server fail while kubelets are
// connected to it, and reads the cluster's state from the other one.
//
//	kubelets ─► 198.18.0.3 (frontend) ─┬─► 198.18.0.3: control-2, which is lost
//	pods ─────► kubernetes ────────────┴─► 198.18.0.2: control, which stays
func ServerLost(ctx context.Context, s *session.Session) error {
	return withSecond(ctx, s, true, func(second session.APIServer) error {
		var errs []error
		// Begin with the fault from which the server recovers at once.
		for _, f := range []fault{stopped, powerLost} {
			if err := leadToBoth(ctx, s, second); err != nil {
				return errors.Join(append(errs, err)...)
			}
			seen, err := lose(ctx, s, f, second)
			if err != nil {
				return errors.Join(append(errs, fmt.Errorf("%s: %w", f.name, err))...)
			}
			if err := errors.Join(seen.nodes.err(), seen.clients(ctx)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
			}
		}
		return errors.Join(errs...)
	})
}

// ServerLostUntranslated is like ServerLost, but without services.apiFrontends. It fails unless a
// node becomes NotReady, which proves that ServerLost would detect such a node.
func ServerLostUntranslated(ctx context.Context, s *session.Session) error {
	return withSecond(ctx, s, false, func(second session.APIServer) error {
		seen, err := lose(ctx, s, powerLost, second)
		if err != nil {
			return err
		}
		if len(seen.nodes.lost) == 0 {
			return fmt.Errorf("no node became NotReady within %s: either kubelets reach another "+
				"server without services.apiFrontends, or the watch is blind", lostFor)
		}
		s.Note("without services.apiFrontends: %s", strings.Join(seen.nodes.lost, "; "))
		return nil
	})
}

// withSecond calls do while the cluster has a second API server and veild sends connections of the
// service kubernetes to both servers, in place of kube-proxy. With translated, veild also sends
// connections to the second server's own address to both. Then withSecond restores everything,
// including the kubelets' kubeconfigs.
func withSecond(ctx context.Context, s *session.Session, translated bool,
	do func(session.APIServer) error) (err error) {
	a, b, err := s.TwoPods(ctx)
	if err != nil {
		return err
	}
	second, err := s.Lab.SecondAPI(ctx)
	if err != nil {
		return err
	}

	urls := map[string]string{} // the kubelets' original URLs, keyed by node
	defer func() {
		err = errors.Join(err, restoreServers(context.WithoutCancel(ctx), s, second, urls))
	}()
	if err := translateServers(ctx, s, second, translated); err != nil {
		return err
	}

	for _, node := range []string{a.Node, b.Node} {
		if urls[node], err = kubeletURL(ctx, s, node); err != nil {
			return err
		}
	}
	return do(second)
}

// restoreServers undoes withSecond. It continues after an error.
func restoreServers(ctx context.Context, s *session.Session, second session.APIServer,
	urls map[string]string) error {
	var errs []error
	for node, url := range urls {
		if url != "" {
			errs = append(errs, startKubelet(ctx, s, node, url))
		}
	}
	errs = append(errs, second.End(ctx), s.ApplyDaemons(ctx, s.Manifests))
	return errors.Join(append(errs, s.WaitNodesReady(ctx, session.Returning))...)
}

// translateServers applies the manifests with the component api-path and both API servers. With
// translated, the second server's address is a frontend.
func translateServers(ctx context.Context, s *session.Session, second session.APIServer,
	translated bool) error {
	first := netip.AddrPortFrom(s.Lab.ControlAddrs()[0], second.Addr().Port())
	config, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, session.ConfigMap,
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch, err := serversPatch(config.Data["veild.yaml"], first, second.Addr(), translated)
	if err != nil {
		return err
	}

	const file = "config.yaml"
	dir := filepath.Join(s.Dir, fmt.Sprintf("with-servers-%t", translated))
	if err := apiobject.WriteOverlay(dir, s.Manifests, []string{"api-path"}, file); err != nil {
		return fmt.Errorf("manifests with the API path: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), patch, 0o644); err != nil {
		return err
	}
	return s.ApplyDaemons(ctx, dir)
}

// leadToBoth waits until connections of the nodes to the second API server's address lead to both
// servers.
func leadToBoth(ctx context.Context, s *session.Session, second session.APIServer) error {
	line := fmt.Sprintf(connectOften, second.Addr().Addr(), second.Addr().Port())
	for _, pod := range s.Pair {
		err := remote.Until(ctx, "the frontend leads to both API servers", session.Meeting,
			func(ctx context.Context) error {
				peers, err := peersOf(ctx, s, pod.Node, line)
				if err == nil && len(peers) < 2 {
					err = fmt.Errorf("ten connections to %s all lead to %v", second.Addr(), peers)
				}
				return err
			})
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", pod.Node, err), serversSeen(ctx, s, pod.Node))
		}
	}
	return nil
}

// serversPatch returns veild's ConfigMap with the API servers added to text, its configuration.
// With translated, it adds the second server's address as a frontend.
func serversPatch(text string, first, second netip.AddrPort, translated bool) ([]byte, error) {
	if strings.Contains(text, "\nservices:") {
		return nil, errors.New("the configuration already has the key services")
	}
	text = fmt.Sprintf("%s\nservices:\n  apiServers: [%q, %q]\n", strings.TrimRight(text, "\n"),
		first, second)
	if translated {
		text += fmt.Sprintf("  apiFrontends: [%q]\n", second)
	}
	return yaml.Marshal(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: session.ConfigMap, Namespace: metav1.NamespaceSystem},
		Data:       map[string]string{"veild.yaml": text},
	})
}

const (
	kubeletConf = "/etc/kubernetes/kubelet.conf"
	// printURL is a shell command that prints the URL of the API server in the kubelet's
	// kubeconfig.
	printURL = `sed -n 's#^ *server: *##p' ` + kubeletConf
	// setURL writes another URL and restarts the kubelet. It resets systemd's count of quick
	// restarts.
	setURL = `sed -i 's#^\( *server: *\).*#\1%s#' ` + kubeletConf +
		` && systemctl reset-failed kubelet; systemctl restart kubelet`
	// kubeletPeers prints the servers to which the kubelet is connected, with their translated
	// addresses.
	kubeletPeers = `ss -Htnp state established '( dport = :6443 )' | ` +
		`awk '/"kubelet"/ {print $(NF-1)}'`
	// connectOften opens ten connections to a host and port, and prints the servers to which they
	// lead. The chance that all ten lead to the same of two servers is 1 in 512.
	connectOften = `bash -c 'for i in 10 11 12 13 14 15 16 17 18 19; do ` +
		`eval "exec $i<>/dev/tcp/%s/%d" || exit 1; done; ` +
		`ss -Htnp state established | grep "pid=$$," | awk "{print \$(NF-1)}"'`
)

// kubeletURL returns the API server's URL that a node's kubelet uses.
func kubeletURL(ctx context.Context, s *session.Session, node string) (string, error) {
	out, err := s.Lab.Exec(ctx, node, printURL)
	if err != nil {
		return "", err
	}
	url := strings.TrimSpace(string(out))
	if !strings.HasPrefix(url, "https://") || strings.ContainsAny(url, " \n'#") {
		return "", fmt.Errorf("%s: the server in %s is %q", node, kubeletConf, url)
	}
	return url, nil
}

// startKubelet restarts a node's kubelet with that URL of the API server.
func startKubelet(ctx context.Context, s *session.Session, node, url string) error {
	_, err := s.Lab.Exec(ctx, node, fmt.Sprintf(setURL, url))
	return err
}

// connectKubelet restarts a node's kubelet with a server's address until it is connected to that
// server, and not to the other one, and has renewed its lease.
func connectKubelet(ctx context.Context, s *session.Session, node string,
	server netip.AddrPort) error {
	var peers []netip.AddrPort
	for range kubeletTries {
		before, err := nodeViews(ctx, s)
		if err != nil {
			return err
		}
		if err := startKubelet(ctx, s, node, "https://"+server.String()); err != nil {
			return err
		}
		err = remote.Until(ctx, "kubelet of "+node, session.Meeting,
			func(ctx context.Context) error {
				last := peers
				if peers, err = peersOf(ctx, s, node, kubeletPeers); err != nil {
					return err
				}
				now, err := nodeViews(ctx, s)
				switch {
				case err != nil:
					return err
				case now[node].renewed.Equal(before[node].renewed):
					return fmt.Errorf("it has not renewed its lease; it is connected to %v", peers)
				case len(peers) == 0 || !slices.Equal(peers, last):
					return fmt.Errorf("it is connected to %v, before to %v", peers, last)
				}
				return nil
			})

		if err != nil {
			return errors.Join(err, serversSeen(ctx, s, node))
		}
		if slices.Contains(peers, server) {
			return nil
		}
	}
	return fmt.Errorf("%s: the kubelet was started %d times and never connected to %s, but to %v",
		node, kubeletTries, server, peers)
}

// peersOf runs a shell command on a node that prints peers of connections. It returns the distinct
// peers, in order.
func peersOf(ctx context.Context, s *session.Session, node, line string) ([]netip.AddrPort, error) {
	out, err := s.Lab.Exec(ctx, node, line)
	if err != nil {
		return nil, err
	}
	return parsePeers(string(out))
}

func parsePeers(out string) ([]netip.AddrPort, error) {
	var peers []netip.AddrPort
	for word := range strings.FieldsSeq(out) {
		peer, err := netip.ParseAddrPort(word)
		if err != nil {
			return nil, fmt.Errorf("peer of a connection: %w", err)
		}
		peers = append(peers, netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()))
	}
	slices.SortFunc(peers, netip.AddrPort.Compare)
	return slices.Compact(peers), nil
}

// serversSeen returns an error whose text is serverState of a node.
func serversSeen(ctx context.Context, s *session.Session, node string) error {
	return fmt.Errorf("%s shows:\n%s", node, serverState(ctx, s, node))
}

// lookLimit is the time limit of serverState. Its requests may wait for the lost API server.
const lookLimit = 20 * time.Second

// serverState returns a text with a node's view of the API servers: veild's status, connections,
// neighbours and the kubelet's log.
func serverState(ctx context.Context, s *session.Session, node string) string {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	text := ""
	st, err := s.NodeStatus(ctx, node)
	if err != nil {
		text += fmt.Sprintf("  no status: %v\n", err)
	}
	if st.Services != nil {
		for _, a := range st.Services.APIServers {
			text += fmt.Sprintf("  %+v\n", a)
		}
		for _, f := range st.Services.APIFrontends {
			text += fmt.Sprintf("  frontend %+v\n", f)
		}
	}
	for _, p := range st.Problems {
		text += "  problem: " + p + "\n"
	}
	out, err := s.Lab.Exec(ctx, node, "date +%T.%N; ss -Htnpo '( dport = :6443 )'; ip neigh; "+
		"journalctl --no-pager -n 25 -u kubelet")
	if err != nil {
		text += fmt.Sprintf("  %v\n", err)
	}
	return text + string(out)
}
