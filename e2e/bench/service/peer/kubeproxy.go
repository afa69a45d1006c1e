package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// ErrLate is the error for a kube-proxy that did not write its rules within the limit.
var ErrLate = errors.New("kube-proxy did not sync")

// KubeProxy describes how to start kube-proxy. All fields must be set.
type KubeProxy struct {
	// Path is the path of the program.
	Path string
	// Mode is nftables, iptables or ipvs.
	Mode string
	// Node is the address of kube-proxy's node. Pods is the range of the cluster's pods.
	Node netip.Addr
	Pods netip.Prefix
	// Dir is a folder for kube-proxy's configuration. Start makes it.
	Dir string
	// Limit bounds the time for writing the rules of all services, and the rules of a change.
	Limit time.Duration
}

// Proxy is a running kube-proxy that has written the rules of all services of its feed. Only one
// goroutine may use it.
type Proxy struct {
	// Took is the time from kube-proxy's first request for services until the rules were written.
	Took time.Duration

	feed   *Feed
	daemon *suite.Daemon
	client http.Client
	limit  time.Duration
}

// configuration is the format of kube-proxy's configuration file. minSyncPeriod is 1 ms, because
// the default, 1 s, would delay the rules of a change, and 0 means the default.
const configuration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: %s
hostnameOverride: %s
clientConnection:
  kubeconfig: %q
  contentType: application/json
  acceptContentTypes: application/json
metricsBindAddress: %s
oomScoreAdj: 0
# They apply to the whole machine.
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 1ms}
nftables: {minSyncPeriod: 1ms}
`

// metricsAddr is the address of kube-proxy's metrics in its namespace.
const metricsAddr = "127.0.0.1:10249"

// Start starts kube-proxy in a namespace and returns when it has written the rules of all services.
// The caller closes the Proxy. After an error, no process of it runs.
func (k KubeProxy) Start(ctx context.Context, s *suite.Space, plan []Object) (*Proxy, error) {
	p := &Proxy{limit: k.Limit, client: http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: s.Dial, DisableKeepAlives: true}}}
	if err := k.start(ctx, s, p, plan); err != nil {
		p.Close()
		if p.daemon != nil {
			err = fmt.Errorf("%w; its log ends with: %s", err, p.daemon.Output())
		}
		return nil, fmt.Errorf("mode %s: %w", k.Mode, err)
	}
	return p, nil
}

func (k KubeProxy) start(ctx context.Context, s *suite.Space, p *Proxy, plan []Object) error {
	err := s.Do(func() (err error) {
		p.feed, err = NewFeed(k.Node, plan)
		return err
	})
	if err != nil {
		return err
	}
	config, err := k.write(p.feed)
	if err != nil {
		return err
	}

	// With IPv6, kube-proxy would keep a second, empty table.
	if err := s.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, k.Limit,
		fmt.Errorf("%w within %v", ErrLate, k.Limit))
	defer cancel()
	p.daemon, err = s.Start(ctx, suite.Program{Argv: []string{k.Path, "--config", config}})
	if err != nil {
		return err
	}

	return p.daemon.Await(ctx, syncPoll, func() (bool, error) {
		m, err := p.metrics(ctx)
		at := m[metricSynced]
		if err != nil || at == 0 {
			return false, nil // kube-proxy is still starting or writing
		}
		p.Took = time.UnixMicro(int64(at * 1e6)).Sub(p.feed.Began())
		return true, nil
	})
}

// write writes the configuration and the kubeconfig, and returns the path of the configuration.
func (k KubeProxy) write(f *Feed) (string, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return "", err
	}
	kubeconfig, config := filepath.Join(k.Dir, "kubeconfig"), filepath.Join(k.Dir, "config.yaml")
	text := fmt.Appendf(nil, configuration, k.Mode, k.Pods, NodeName, kubeconfig, metricsAddr)
	return config, errors.Join(f.WriteConfig(kubeconfig), os.WriteFile(config, text, 0o600))
}

// Close ends kube-proxy and its feed. The rules remain in the namespace.
func (p *Proxy) Close() {
	if p.daemon != nil {
		p.daemon.Close()
	}
	if p.feed != nil {
		p.feed.Close()
	}
}

// Change sends a changed slice and returns the time until its rules are written, by kube-proxy's
// own metric (network_programming_duration_seconds).
func (p *Proxy) Change(ctx context.Context, s service.Slice) (time.Duration, error) {
	before, err := p.metrics(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := p.feed.Change(ctx, s); err != nil {
		return 0, err
	}

	ctx, cancel := context.WithTimeoutCause(ctx, p.limit,
		fmt.Errorf("%w a change of %s within %v", ErrLate, s.Service, p.limit))
	defer cancel()
	var seconds float64
	err = p.daemon.Await(ctx, changePoll, func() (bool, error) {
		now, err := p.metrics(ctx)
		seconds = now[metricChanges+"_sum"] - before[metricChanges+"_sum"]
		return err == nil && now[metricChanges+"_count"] > before[metricChanges+"_count"], nil
	})
	return time.Duration(seconds * float64(time.Second)), err
}

const (
	// metricSynced is the time of the last sync, in seconds since 1970. kube-proxy first syncs when
	// it has all services and all slices.
	metricSynced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	// metricChanges is a histogram of the times from a slice's trigger time until its rules are
	// written.
	metricChanges = "kubeproxy_network_programming_duration_seconds"

	// syncPoll and changePoll are the pauses between two reads of the metrics. A read costs
	// kube-proxy about a millisecond.
	syncPoll   = 100 * time.Millisecond
	changePoll = 20 * time.Millisecond
)

// metrics returns kube-proxy's metrics about IPv4, keyed by name.
func (p *Proxy) metrics(ctx context.Context) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddr+"/metrics",
		nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return parseMetrics(resp.Body)
}

// maxMetrics bounds the bytes that are read of kube-proxy's metrics.
const maxMetrics = 16 << 20

// parseMetrics returns the metrics whose only label is ip_family="IPv4", keyed by name. The text is
// in Prometheus' exposition format.
func parseMetrics(r io.Reader) (map[string]float64, error) {
	out := map[string]float64{}
	in := bufio.NewScanner(io.LimitReader(r, maxMetrics))
	for in.Scan() {
		name, value, ok := strings.Cut(in.Text(), `{ip_family="IPv4"} `)
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", name, err)
		}
		out[name] = v
	}
	return out, in.Err()
}
