package scale

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/e2e/scale/apifeed"
	"github.com/kubeveil/kubeveil/e2e/scale/servicenode"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/service"
)

// name marks the processes of the node.
const name = "scale-node"

func TestMain(m *testing.M) {
	if status, is := suite.Child(name, runNode); is {
		os.Exit(status)
	}
	os.Exit(nettest.Run(m))
}

// tenth has a tenth of the services of a large cluster. Every tenth is of UDP.
var tenth = apifeed.Shape{Endpoints: 100_000, PerService: 100, UDP: 10}

// limits have room for tenth and for its changes.
var limits = service.Limits{Frontends: 1 << 14, BackendSlots: 1 << 19,
	SourceRanges: 1 << 10}

// folder is the folder of the pins in the file system that the node's process inherits.
const folder = "kubeveil"

// runNode is the node's process. Its arguments are the path of the kubeconfig and the folder of the
// pins.
func runNode(ctx context.Context, args []string, _ io.Writer) error {
	n, err := servicenode.Open(servicenode.Config{Name: apifeed.Node, Kubeconfig: args[0],
		Dir: args[1], Limits: limits})
	if err != nil {
		return err
	}
	n.Run(ctx)
	return n.Close()
}

// node starts the node's process, and kills it.
type node struct {
	t      *testing.T
	self   suite.Self
	pins   *bpffs.FS
	config string
	cmd    *exec.Cmd // nil if no process runs
	log    bytes.Buffer
}

func newNode(t *testing.T, f *apifeed.Feed) *node {
	n := &node{t: t, config: filepath.Join(t.TempDir(), "kubeconfig")}
	var err error
	n.self, err = suite.NewSelf(name)
	errtest.Must(t, err)
	n.pins, err = bpffs.New()
	errtest.Must(t, err)
	errtest.Must(t, f.WriteConfig(n.config))
	t.Cleanup(func() {
		n.kill()
		errtest.Must(t, n.pins.Close())
	})
	return n
}

func (n *node) start() {
	n.t.Helper()
	pins, err := n.pins.File()
	errtest.Must(n.t, err)
	defer pins.Close()
	argv := n.self.Argv(n.config, "/proc/self/fd/3/"+folder)
	n.cmd = exec.Command(argv[0], argv[1:]...)
	n.cmd.ExtraFiles, n.cmd.Stderr = []*os.File{pins}, &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	errtest.Must(n.t, n.cmd.Start())
}

// kill kills the process by SIGKILL.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.cmd = nil
}

// follows waits until the maps hold what the source has.
func (n *node) follows(s *source) {
	n.t.Helper()
	w, dir, began := s.wants(), n.pins.Dir(folder), time.Now()
	how := "not read"
	defer func() {
		if n.t.Failed() {
			n.t.Logf("%s\n%s", how, n.log.String())
		}
	}()
	nettest.Until(n.t, time.Minute, "the maps hold what the API server has", func() bool {
		how = differs(dir, w)
		return how == ""
	})
	n.t.Logf("equal after %.2f s", time.Since(began).Seconds())
}

// The maps hold exactly what the API server has, after each of the following: a first list, many
// changes, the loss of all slices, a time without API server, a process that is killed, objects
// that cannot be read, and bookmarks and errors at the wrong time.
func TestServicesFollowTheAPIServer(t *testing.T) {
	nettest.NeedRoot(t)
	nettest.NeedBPF(t)
	f := apifeed.New()
	t.Cleanup(f.Close)
	n, s := newNode(t, f), newSource(t, f, tenth)

	for _, step := range []struct {
		name string
		do   func()
	}{
		{"cold start", n.start},
		{"churn", func() { s.change(2000) }},
		{"all slices deleted", func() {
			for i := range s.services {
				s.removeSlices(i)
			}
		}},
		{"and back", func() {
			for i := range s.services {
				s.add(i)
			}
		}},

		{"cut off, with a relist after a compaction", func() {
			f.Cut()
			s.change(500)
			f.Compact()
			f.Restore()
		}},
		{"a service is deleted while slices are listed again", func() {
			f.Cut()
			s.slices[s.first()][0].Labels["changed"] = "yes" // so that its revision is lost
			errtest.Must(t, f.Put(s.slices[s.first()][0]))
			errtest.Must(t, f.Put(s.services[s.first()]))
			release := n.hold(s, 2, func() {
				f.Compact()
				f.Restore()
			})
			defer release()
			i := s.first()
			errtest.Must(t, f.Delete(s.services[i]))
			delete(s.services, i)
			n.follows(s)
			s.services[i] = s.shape.Service(i)
			errtest.Must(t, f.Put(s.services[i]))
			n.follows(s)
		}},
		{"410 in the midst", func() {
			errtest.Must(t, f.Expire(apifeed.Slices))
			s.change(100)
		}},
		{"a bookmark that lies", func() {
			s.change(50)
			errtest.Must(t, f.Bookmark(apifeed.Slices, 1_000_000))
		}},
		{"cut off after it", func() {
			f.Cut()
			s.change(50)
			f.Restore()
		}},

		{"killed at a quarter of a list", func() { n.killedAt(s, 1) }},
		{"killed at half of a list", func() { n.killedAt(s, 2) }},
		{"killed at three quarters of a list", func() { n.killedAt(s, 3) }},
		{"killed while it writes", func() {
			for i := range s.services {
				s.removeSlices(i)
				if i%250 == 0 {
					n.kill()
					n.start()
				}
				s.slices[i] = s.shape.Slices(i)
				for _, slice := range s.slices[i] {
					errtest.Must(t, f.Put(slice))
				}
			}
		}},

		{"one object that cannot be read", func() {
			// The node keeps what it read of the object before, so the source does too.
			bad := s.slices[s.first()][0]
			errtest.Must(t, f.PutBad(bad.DeepCopy()))
			s.change(20)
		}},
		{"the same, listed again", func() {
			f.Cut()
			s.change(20)
			f.Compact()
			f.Restore()
		}},
		{"and readable again", func() { s.changeEndpoint(s.slices[s.first()][0]) }},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			n.t, s.t = t, t
			step.do()
			n.follows(s)
		}) {
			break
		}
	}
	n.t, s.t = t, t
}

// killedAt kills the node, changes the source, and kills the next process after some quarters of
// its list. Until then the maps must hold what the first process wrote. It then starts another
// process.
func (n *node) killedAt(s *source, quarters int) {
	n.t.Helper()
	n.kill()
	before := s.wants()
	s.change(100)
	defer n.hold(s, quarters, n.start)()
	if how := differs(n.pins.Dir(folder), before); how != "" {
		n.t.Errorf("while the list is read: %s", how)
	}
	n.kill()
	n.start()
}

// hold stops the list of slices that begin causes after some of its quarters, until release.
func (n *node) hold(s *source, quarters int, begin func()) (release func()) {
	n.t.Helper()
	reached, release := s.feed.Hold(apifeed.Slices, len(s.slices)*quarters/4)
	begin()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		release()
		n.t.Fatal("the list did not begin")
	}
	return release
}
