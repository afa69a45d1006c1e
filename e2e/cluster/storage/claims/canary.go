package claims

import (
	"context"
	"fmt"
	"strconv"
)

// Started starts a claim's pod, and returns the path of its volume on the node.
func (s Client) Started(ctx context.Context, c Claim) (string, error) {
	if err := s.Start(ctx, c); err != nil {
		return "", err
	}
	return s.Path(ctx, c)
}

// WriteCanary starts a claim's pod, and writes and reads canaries through its volume.
func (s Client) WriteCanary(ctx context.Context, c Claim) error {
	path, err := s.Started(ctx, c)
	if err != nil {
		return err
	}
	if !c.Block {
		path += "/first"
	}
	return s.Write(ctx, path, c.Block)
}

// Write writes a MiB of canaries to path and reads them again. device means that path is a raw
// device.
func (s Client) Write(ctx context.Context, path string, device bool) error {
	flags := ""
	if device {
		flags = " oflag=direct"
	}
	line := fmt.Sprintf("yes %s | dd of=%s bs=64k count=16 iflag=fullblock conv=notrunc,fsync%s "+
		"2>/dev/null && dd if=%[2]s bs=64k count=16 2>/dev/null | grep -c %[1]s", s.Canary, path,
		flags)
	out, err := s.Node(ctx, line)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(out); err != nil || n < 1000 {
		return fmt.Errorf("%s: read %q canaries, want at least 1000", path, out)
	}
	return nil
}

// CheckFile starts the pod of an existing claim, and checks that the file has the canary.
func (s Client) CheckFile(ctx context.Context, c Claim, file string) error {
	path, err := s.Started(ctx, c)
	if err != nil {
		return err
	}
	node, err := s.Kubectl(ctx, "get", "pod", c.Name, "-o", "jsonpath={.spec.nodeName}")
	if err != nil {
		return err
	}
	out, err := s.On(ctx, node, fmt.Sprintf("grep -c %s %s/%s", s.Canary, path, file))
	if err == nil && out == "0" {
		err = fmt.Errorf("%s has no canary", file)
	}
	return err
}
