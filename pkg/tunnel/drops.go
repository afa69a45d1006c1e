package tunnel

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	// dropsPatience bounds the time that veil-wg may take to answer.
	dropsPatience = time.Second
	// maxReasons bounds the reasons of an answer.
	maxReasons = 256
)

// readDrops asks the configuration socket of a device what it dropped, by reason. It returns nil
// where the engine does not count, or veil-wg is of a release that does not tell: a device without
// counters is no worse for it.
func readDrops(socket string) map[string]uint64 {
	c, err := net.DialTimeout("unix", socket, dropsPatience)
	if err != nil {
		return nil
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(dropsPatience))
	if _, err := fmt.Fprint(c, "drops=1\n\n"); err != nil {
		return nil
	}

	out := map[string]uint64{}
	in := bufio.NewScanner(c)
	for in.Scan() && len(out) <= maxReasons {
		reason, text, _ := strings.Cut(in.Text(), "=")
		if reason == "errno" {
			if text != "0" {
				return nil
			}
			return out
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil
		}
		out[reason] = n
	}
	return nil
}
