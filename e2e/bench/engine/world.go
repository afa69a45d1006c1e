package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Overhead of a tunnel over IPv4: IP, UDP, and WireGuard's header and tag.
const overhead = 20 + 8 + 32

// port is the port on which both device processes listen.
const port = 51820

// world is one side of a comparison. It has four namespaces, joined in a row: pod a, node a, node b
// and pod b. Each node has a device process.
type world struct {
	side side
	// engines are the engines of nodes a and b; both are side.engine except in tests.
	engines [2]string
	shards  int // of each device process; 0 follows the CPUs
	mtu     int
	dir     string
	names   [4]string // node a, node b, pod a, pod b
	procs   [2]*exec.Cmd
	step    [2]string // the step of a handover at which the process that start starts is killed
	logs    []*os.File
}

const (
	nodeA = iota
	nodeB
	podA
	podB
)

// podAddr is the address of a pod.
func podAddr(pod int) string { return fmt.Sprintf("198.19.%d.2", pod-podA+1) }

func (w *world) path(i int) string { return "/run/netns/" + w.names[i] }

// run runs ip(8) with each line of text.
func run(ctx context.Context, netns, text string) error {
	for line := range strings.Lines(text) {
		args := strings.Fields(line)
		if len(args) == 0 {
			continue
		}
		if netns != "" {
			args = append([]string{"-n", netns}, args...)
		}
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// build makes a world. Call close also after an error.
func build(ctx context.Context, s side, mtu int, dir string) (*world, error) {
	w := unbuilt(s, mtu, dir)
	return w, w.build(ctx)
}

// unbuilt returns a world whose namespaces do not exist yet.
func unbuilt(s side, mtu int, dir string) *world {
	w := &world{side: s, engines: [2]string{s.engine, s.engine}, mtu: mtu,
		dir: filepath.Join(dir, fmt.Sprintf("%s-%d", s.file, mtu))}
	for i, n := range []string{"a", "b", "pa", "pb"} {
		w.names[i] = fmt.Sprintf("kvbench%d-%s%d%s", os.Getpid(), s.file, mtu, n)
	}
	return w
}

func (w *world) build(ctx context.Context) error {
	for _, n := range w.names {
		if err := run(ctx, "", "netns add "+n); err != nil {
			return err
		}
		if err := run(ctx, n, "link set lo up"); err != nil {
			return err
		}
	}

	inner := w.mtu
	if w.side.engine != "" {
		inner -= overhead
	}

	if err := run(ctx, w.names[nodeA],
		fmt.Sprintf(`link add eth0 mtu %[1]d type veth peer name eth0 mtu %[1]d netns %[2]s
		addr add 198.18.0.1/24 dev eth0
		link set eth0 up`, w.mtu, w.names[nodeB])); err != nil {
		return err
	}

	if err := run(ctx, w.names[nodeB], "addr add 198.18.0.2/24 dev eth0\nlink set eth0 up"); err !=
		nil {
		return err
	}

	for i := range 2 {
		node, pod := w.names[nodeA+i], w.names[podA+i]
		if err := run(ctx, node,
			fmt.Sprintf(`link add pod mtu %[1]d type veth peer name eth0 mtu %[1]d netns %[2]s
			addr add 198.19.%[3]d.1/24 dev pod
			link set pod up`, inner, pod, i+1)); err != nil {
			return err
		}
		if err := run(ctx, pod, fmt.Sprintf(
			"addr add %s/24 dev eth0\nlink set eth0 up\nroute add default via 198.19.%d.1",
			podAddr(podA+i), i+1)); err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, "ip", "netns", "exec", node, "sh", "-c",
			"echo 1 > /proc/sys/net/ipv4/ip_forward").CombinedOutput(); err != nil {
			return fmt.Errorf("forward on %s: %w: %s", node, err, out)
		}
	}

	if w.side.name == tlsPair {
		return w.proxies()
	}
	if w.side.engine == "" {
		return errors.Join(run(ctx, w.names[nodeA], "route add 198.19.2.0/24 via 198.18.0.2"),
			run(ctx, w.names[nodeB], "route add 198.19.1.0/24 via 198.18.0.1"))
	}

	return w.tunnel(ctx, inner)
}

// tunnel starts the device processes and configures them as peers.
func (w *world) tunnel(ctx context.Context, inner int) error {
	keys := make([]wgkey.Private, 2)
	for i := range keys {
		var err error
		if keys[i], err = wgkey.Generate(); err != nil {
			return err
		}
		if err := w.start(i, inner); err != nil {
			return err
		}
	}
	// Tests kill node a, which then initiates a handshake. Node b must accept it, even if b has
	// initiated one in the last 5 s. Of two handshakes that cross, the one of the greater key wins,
	// so node a gets the greater key.
	pa, pb := keys[0].Public(), keys[1].Public()
	if bytes.Compare(pa[:], pb[:]) < 0 {
		keys[0], keys[1] = keys[1], keys[0]
	}
	for i := range 2 {
		own, other := keys[i].Bytes(), keys[1-i].Public()
		text := fmt.Sprintf(
			"private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=198.18.0.%d:%d\nallowed_ip=198.19.%d.0/24\n",
			hex.EncodeToString(own[:]), port, hex.EncodeToString(other[:]), 2-i, port, 2-i)
		if err := configure(ctx, w.socket(i), text); err != nil {
			return err
		}
		if err := run(ctx, w.names[i], fmt.Sprintf("route add 198.19.%d.0/24 dev veil0",
			2-i)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) socket(i int) string { return filepath.Join(w.dir, strconv.Itoa(i), "veil0.sock") }

// start starts the device process of a node.
func (w *world) start(i, mtu int) error {
	cmd, err := w.child(i, mtu, w.step[i])
	if err != nil {
		return err
	}
	w.procs[i] = cmd
	return cmd.Start()
}

// errNotTaken is the error of a successor that did not take the device over.
var errNotTaken = errors.New("the successor ended")

// upgrade starts a successor of the device process of a node. The successor is killed at a step, or
// never if step is empty. upgrade returns when the successor serves the device and the former
// process has ended.
func (w *world) upgrade(i int, step string) error {
	r, wr, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd, err := w.child(i, w.mtu-overhead, step, wr)
	if err == nil {
		err = cmd.Start()
	}
	wr.Close()
	if err != nil {
		return err
	}
	if n, _ := r.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("%w: %w", errNotTaken, cmd.Wait())
	}
	old := w.procs[i]
	w.procs[i] = cmd
	return old.Wait()
}

// child returns the command of a device process of a node, which is this program again. With a pipe
// the process takes over the device.
func (w *world) child(i, mtu int, step string, pipe ...*os.File) (*exec.Cmd, error) {
	dir := filepath.Join(w.dir, strconv.Itoa(i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	self, err := suite.NewSelf(Suite)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	w.logs = append(w.logs, log)
	cmd := exec.Command("ip", append([]string{"netns", "exec", w.names[i]},
		self.Argv(w.engines[i], w.side.aead, dir, strconv.Itoa(mtu), strconv.Itoa(w.shards),
			strconv.FormatBool(len(pipe) > 0), step)...)...)
	cmd.ExtraFiles = pipe
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// configure sends the request "set" to a device process, which may still be starting.
func configure(ctx context.Context, socket, text string) error {
	var c net.Conn
	var err error
	for range 200 {
		if c, err = net.Dial("unix", socket); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err != nil {
		return fmt.Errorf("device process does not start: %w", err)
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "set=1\n%s\n", text); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "errno=0" {
		return fmt.Errorf("configure device: %q, %w", line, err)
	}
	return nil
}

// cpu returns the time that the device processes used, from /proc/PID/stat.
func (w *world) cpu() (time.Duration, error) {
	var sum time.Duration
	for _, p := range w.procs {
		if p == nil {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
		if err != nil {
			return 0, err
		}
		// The name is in brackets and may hold blanks. Fields 14 and 15 are ticks of 10 ms.
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		user, _ := strconv.Atoi(f[11])
		system, _ := strconv.Atoi(f[12])
		sum += time.Duration(user+system) * 10 * time.Millisecond
	}
	return sum, nil
}

func (w *world) close() {
	for _, p := range w.procs {
		if p != nil && p.Process != nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
	for _, f := range w.logs {
		f.Close()
	}
	for _, n := range w.names {
		_ = exec.Command("ip", "netns", "del", n).Run()
	}
}
