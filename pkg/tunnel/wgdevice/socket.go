package wgdevice

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

const (
	// askPatience bounds the time that veil-wg may take to answer. stillPatience bounds it before a
	// request of wgctrl. It is longer, because a turn fails after it.
	askPatience, stillPatience = time.Second, 5 * time.Second
	// maxLines bounds the lines of an answer: a line for each peer at most.
	maxLines = 1 << 17
)

func socketOf(device string) string {
	return filepath.Join(abi.WireGuardSocketDir, device+".sock")
}

// ask sends a request to the configuration socket of a device and calls each for each line of the
// answer. WireGuard's configuration protocol does not have these requests. ask returns
// unix.EOPNOTSUPP if the engine does not know the request. A veil-wg of an older release closes the
// connection, which is an error too.
func ask(socket, request string, each func(name, value string) error) error {
	return askWithin(askPatience, socket, request, each)
}

// ErrStill is the error about a process of a device that takes a request and does not answer it.
var ErrStill = errors.New("the process of the device does not answer")

// standsStill returns an error if the process of a device takes a request and does not answer it,
// as after SIGSTOP. It returns nil if there is no such process. wgctrl has no deadline, so its
// request would wait as long.
func standsStill(device string) error {
	err := askWithin(stillPatience, socketOf(device), "drops=1",
		func(string, string) error { return nil })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("read or change device %s: %w for %v: let it continue, or end it, and "+
			"veil-wg starts another", device, ErrStill, stillPatience)
	}
	return nil
}

func askWithin(patience time.Duration, socket, request string,
	each func(name, value string) error) error {
	c, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprint(c, request+"\n\n"); err != nil {
		return err
	}

	in := bufio.NewScanner(c)
	for n := 0; in.Scan() && n < maxLines; n++ {
		name, value, _ := strings.Cut(in.Text(), "=")
		if name == "errno" {
			code, err := strconv.ParseInt(value, 10, 64)
			if err != nil || code == 0 {
				return err
			}
			return unix.Errno(-code)
		}
		if err := each(name, value); err != nil {
			return err
		}
	}
	return errors.Join(in.Err(), errors.New("the answer has no end"))
}

// readDrops reads the numbers of dropped packets, by reason, from the configuration socket of a
// device. It returns nil on any error, such as from an engine or a release of veil-wg that does not
// report them, because a device without these counters is still usable.
func readDrops(socket string) map[string]uint64 {
	out := map[string]uint64{}
	if ask(socket, "drops=1", func(reason, text string) (err error) {
		out[reason], err = strconv.ParseUint(text, 10, 64)
		return err
	}) != nil {
		return nil
	}
	return out
}

// readOffloads reads from the configuration socket of a device which offloads the device uses, and
// to which peers it sends datagrams one by one. Both results are nil if the engine does not report
// them.
func readOffloads(socket string) (on map[string]bool, singly map[wgkey.Public]bool) {
	on, singly = map[string]bool{}, map[wgkey.Public]bool{}
	if ask(socket, "offloads=1", func(name, value string) (err error) {
		if name != "singly" {
			on[name], err = strconv.ParseBool(value)
			return err
		}
		var key wgkey.Public
		if n, err := hex.Decode(key[:], []byte(value)); err != nil || n != len(key) {
			return fmt.Errorf("public key %q", value)
		}
		singly[key] = true
		return nil
	}) != nil {
		return nil, nil
	}
	return on, singly
}

// SendSingly makes a device send datagrams to a peer one by one. The error matches unix.EOPNOTSUPP
// if the engine of the device does not support that.
func (h *Host) SendSingly(_ context.Context, device string, peer wgkey.Public) error {
	err := ask(socketOf(device), fmt.Sprintf("singly=%x", peer[:]),
		func(name, _ string) error { return fmt.Errorf("unexpected %q", name) })
	if err != nil {
		return fmt.Errorf("send datagrams of %s singly: %w", device, err)
	}
	return nil
}
