package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench/session"
)

// sessions returns the verbs of a session. Some of them work only in a privileged pod. In others
// they return the kernel's error.
func sessions(n *node) map[string]session.Handler {
	return map[string]session.Handler{
		session.VerbIperf:      session.Handle(iperf),
		session.VerbRoundTrips: session.Handle(roundTrips),
		session.VerbSelf:       session.Handle(self),
		session.VerbAwait:      session.Handle(await),
		session.VerbPlatform:   session.Handle(n.platform),
		session.VerbTunnel:     session.Handle(n.tunnel),
		session.VerbWire:       session.Handle(n.wire),
		session.VerbUnwire:     session.Handle(n.unwire),
		session.VerbCount:      session.Handle(n.count),
		session.VerbPrograms:   session.Handle(n.programs),
		session.VerbWatch:      session.Handle(n.watch),
		session.VerbJudge:      session.Handle(n.judge),
	}
}

func serve(ctx context.Context, args []string) error {
	if err := Verbs().Parse(verb.Flags("session-serve"), "", args); err != nil {
		return err
	}
	n := &node{}
	defer n.close()
	return session.Serve(ctx, os.Stdin, os.Stdout, sessions(n))
}

// iperf runs iperf3 with a.Args and returns its output. ctx ends it early.
func iperf(ctx context.Context, a session.Iperf) (any, error) {
	cmd := exec.CommandContext(ctx, "iperf3", a.Args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	done := session.IperfDone{Stdout: stdout.Bytes(), Stderr: stderr.String()}
	var status *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &status):
		done.Failure = status.Error()
	default:
		return nil, err
	}
	return done, nil
}

func self(context.Context, struct{}) (any, error) {
	inode, err := inodeOf("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	s := session.Self{NetNS: inode}
	if link, err := net.InterfaceByName("eth0"); err == nil {
		s.MTU = link.MTU
	}
	return s, nil
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", path, err)
	}
	return st.Ino, nil
}

// agent waits until ctx ends, then removes the links of the suite. So links that a killed suite
// left disappear with the pod.
func agent(ctx context.Context, args []string) error {
	if err := Verbs().Parse(verb.Flags("node-wait"), "", args); err != nil {
		return err
	}
	<-ctx.Done()
	return removeLinks()
}

// pod runs the servers of a measured pod until ctx ends or one of them fails.
func pod(ctx context.Context, args []string) error {
	if err := Verbs().Parse(verb.Flags("pod-serve"), "", args); err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- serveRoundTrips(ctx) }()
	go func() { failed <- serveIperf(ctx) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// serveIperf runs an iperf3 server until ctx ends. It restarts the server when it ends, because
// some versions die when a client is killed.
func serveIperf(ctx context.Context) error {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, "iperf3", "-s", "-p", fmt.Sprint(session.IperfPort))
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		began := time.Now()
		err := cmd.Run()
		if ctx.Err() == nil && time.Since(began) < time.Second {
			return fmt.Errorf("iperf3 ended at once: %w", err)
		}
	}
	return nil
}
