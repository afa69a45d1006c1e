package qemu

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// memoryMB is the memory of a machine.
const memoryMB = 2048

// Guest is a virtual machine with one network card and disks.
type Guest struct {
	Name  string
	Accel Accel
	CPUs  int
	// Kernel and Initrd are files that the machine boots.
	Kernel, Initrd string
	// MTU is the MTU of the TAP device, which has the name of the machine.
	MTU int
	// Console is the file with the output of the serial line.
	Console string
	// Monitor is the path of the socket of Command.
	Monitor string
	// Clock is the time that the hardware clock has when the machine starts. The zero time means
	// that of this host.
	Clock time.Time
	Disks []Disk
}

// Disk is a disk of a machine. The first is /dev/vda.
type Disk struct {
	ID string
	// Drive has qemu's options of the drive, with its file.
	Drive string
}

// Overlay returns a disk in the format qcow2, whose data may be lost if this machine crashes.
func Overlay(id, file string) Disk {
	return Disk{id, "cache=unsafe,discard=unmap,file=" + file}
}

// hardwareAddr returns the machine's MAC address, which stays the same after a reboot.
func (g Guest) hardwareAddr() string {
	sum := sha256.Sum256([]byte("vm/" + g.Name))
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

// noOffloads turns segmentation and checksum offloads off, so that the oracle sees the frames as
// they would be on a wire.
const noOffloads = "csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off," +
	"guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off"

// Arguments returns qemu's arguments. Each disk has a -device argument of its own, because qemu
// assigns the first places to such devices, and the disk in the first place is /dev/vda.
func (g Guest) Arguments() []string {
	args := append(g.Accel.arguments(),
		"-name", g.Name, "-nodefaults", "-no-user-config", "-display", "none",
		"-smp", fmt.Sprint(g.CPUs), "-m", fmt.Sprint(memoryMB),
		"-kernel", g.Kernel, "-initrd", g.Initrd,
		"-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off no_timer_check "+
			"nowatchdog systemd.show_status=0 systemd.hostname="+g.Name,
		"-netdev", "tap,id=net0,script=no,downscript=no,vhost=off,ifname="+g.Name,
		"-device", "virtio-net-pci,netdev=net0,mac="+g.hardwareAddr()+
			fmt.Sprintf(",host_mtu=%d,", g.MTU)+noOffloads,
		"-device", "virtio-rng-pci",
		"-qmp", "unix:"+g.Monitor+",server=on,wait=off",
		"-serial", "file:"+g.Console)
	if !g.Clock.IsZero() {
		args = append(args, "-rtc", "base="+g.Clock.UTC().Format("2006-01-02T15:04:05"))
	}
	for _, d := range g.Disks {
		args = append(args, "-drive", "if=none,id="+d.ID+","+d.Drive, "-device",
			"virtio-blk-pci,drive="+d.ID)
	}
	return args
}
