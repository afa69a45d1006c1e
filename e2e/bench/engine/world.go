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
	"time"

	"github.com/kubeveil/kubeveil/internal/poll"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// overhead is the number of bytes that a tunnel over IPv4 adds to a packet: the headers of IP and
// UDP, and WireGuard's header and tag.
const overhead = 20 + 8 + 32

// port is the port on which both device processes listen.
const port = 51820

// world is the network of one side. Its four namespaces are connected in a row: pod a, node a, node
// b and pod b. Each node has a device process or a proxy, or neither on the clear network.
type world struct {
	side side
	// engines are the engines of nodes a and b; both are side.engine except in tests.
	engines [2]string
	shards  int // of each device process; 0 derives the number from the CPUs
	mtu     int // of the link between the nodes, bytes
	dir     string
	spaces  [4]*suite.Space // node a, node b, pod a, pod b; nil means not made
	procs   [2]*exec.Cmd
	proxies []*suite.Daemon
	step    [2]string // handover step at which the process from start is killed; "" means never
	logs    []*os.File
}

const (
	nodeA = iota
	nodeB
	podA
	podB
)

// podAddr returns the address of podA or podB.
func podAddr(pod int) string { return fmt.Sprintf("198.19.%d.2", pod-podA+1) }

// unbuilt returns a world whose namespaces are not made yet.
func unbuilt(s side, mtu int, dir string) *world {
	return &world{side: s, engines: [2]string{s.engine, s.engine}, mtu: mtu,
		dir: filepath.Join(dir, fmt.Sprintf("%s-%d", s.file, mtu))}
}

// build makes a world with all its namespaces and processes. Call close also after an error.
func build(ctx context.Context, s side, mtu int, dir string) (*world, error) {
	w := unbuilt(s, mtu, dir)
	return w, w.build(ctx)
}

// add makes the namespace with index i.
func (w *world) add(i int) (err error) {
	w.spaces[i], err = suite.NewSpace(fmt.Sprintf("%s of %s",
		[]string{"node a", "node b", "pod a", "pod b"}[i], w.side.name))
	return err
}

func (w *world) build(ctx context.Context) error {
	for i := range w.spaces {
		if err := w.add(i); err != nil {
			return err
		}
	}

	inner := w.mtu
	if w.side.engine != "" {
		inner -= overhead
	}

	err := errors.Join(w.spaces[nodeA].IP(ctx,
		fmt.Sprintf("link add eth0 mtu %[1]d type veth peer name eth0 mtu %[1]d netns %[2]s",
			w.mtu, w.spaces[nodeB].Path()),
		"addr add 198.18.0.1/24 dev eth0", "link set eth0 up"),
		w.spaces[nodeB].IP(ctx, "addr add 198.18.0.2/24 dev eth0", "link set eth0 up"))
	for i := range 2 {
		node, pod := w.spaces[nodeA+i], w.spaces[podA+i]
		err = errors.Join(err, node.IP(ctx,
			fmt.Sprintf("link add pod mtu %[1]d type veth peer name eth0 mtu %[1]d netns %[2]s",
				inner, pod.Path()),
			fmt.Sprintf("addr add 198.19.%d.1/24 dev pod", i+1), "link set pod up"),
			pod.IP(ctx, fmt.Sprintf("addr add %s/24 dev eth0", podAddr(podA+i)),
				"link set eth0 up", fmt.Sprintf("route add default via 198.19.%d.1", i+1)),
			node.Sysctl("net/ipv4/ip_forward", "1"))
	}
	if err != nil {
		return err
	}

	if w.side.name == tlsPair {
		return w.startProxies(ctx)
	}
	if w.side.engine == "" {
		return errors.Join(w.spaces[nodeA].IP(ctx, "route add 198.19.2.0/24 via 198.18.0.2"),
			w.spaces[nodeB].IP(ctx, "route add 198.19.1.0/24 via 198.18.0.1"))
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
	// initiated one in the last 5 s. Of two simultaneous handshakes, the one of the greater key
	// wins, so node a gets the greater key.
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
		if err := w.spaces[i].IP(ctx, fmt.Sprintf("route add 198.19.%d.0/24 dev veil0",
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

// errNotTaken is the error for a successor that ended before it took over the device.
var errNotTaken = errors.New("the successor ended before it took over the device")

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
		return errors.Join(errNotTaken, cmd.Wait())
	}
	old := w.procs[i]
	w.procs[i] = cmd
	return old.Wait()
}

// child returns the command of a device process of a node. The process is a child of this program.
// With a pipe it takes over the device and then writes to the pipe. step is the handover step at
// which it is killed.
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
	argv := self.Argv(w.engines[i], w.side.aead, dir, strconv.Itoa(mtu), strconv.Itoa(w.shards),
		strconv.FormatBool(len(pipe) > 0), step)
	cmd := w.spaces[i].Command(context.Background(), nil, argv[0], argv[1:]...)
	cmd.ExtraFiles = pipe
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, nil
}

// configure sends the request "set" to a device process. It waits if the process is still starting.
func configure(ctx context.Context, socket, text string) error {
	var c net.Conn
	var err error
	for range 200 {
		if c, err = net.Dial("unix", socket); err == nil {
			break
		}
		if err := poll.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
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
	if err != nil {
		return fmt.Errorf("configure device: %w", err)
	}
	if strings.TrimSpace(line) != "errno=0" {
		return fmt.Errorf("configure device: the answer is %q, want errno=0", line)
	}
	return nil
}

// get returns the lines of a device's answer to the request "get".
func get(socket string) (lines []string, err error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "get=1\n\n"); err != nil {
		return nil, err
	}
	in := bufio.NewScanner(c)
	for in.Scan() && in.Text() != "" {
		lines = append(lines, in.Text())
	}
	if n := len(lines); n == 0 || lines[n-1] != "errno=0" {
		return nil, errors.Join(errors.New("read device: the answer is incomplete"), in.Err())
	}
	return lines, nil
}

// cpu returns the total CPU time of the device processes and proxies since their start.
func (w *world) cpu() (time.Duration, error) {
	var pids []int
	for _, p := range w.procs {
		if p != nil {
			pids = append(pids, p.Process.Pid)
		}
	}
	for _, d := range w.proxies {
		pids = append(pids, d.Pid())
	}
	return load.ProcessCPU(pids...)
}

func (w *world) close() {
	for _, p := range w.procs {
		if p != nil && p.Process != nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	}
	for _, d := range w.proxies {
		d.Close()
	}
	for _, f := range w.logs {
		f.Close()
	}
	for _, s := range w.spaces {
		if s != nil {
			s.Close()
		}
	}
}
