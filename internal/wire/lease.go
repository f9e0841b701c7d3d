// SPDX-License-Identifier: Apache-2.0

package wire

import "xsched/internal/model"

// LeaseSlot is one lease of a page: of one device, or the shared one.
type LeaseSlot struct {
	page             *Page
	epoch, recovered int // offsets; the deadline follows the epoch
}

const (
	_ = uint(OffHeaderLeaseDeadlineNS - OffHeaderLeaseEpoch - 8) // the deadline follows the epoch
	_ = uint(OffLeaseDeadlineNS - OffLeaseEpoch - 8)
)

func (p *Page) shared() LeaseSlot { return LeaseSlot{p, OffHeaderLeaseEpoch, OffHeaderRecoveredEpoch} }

// Leases returns the number of devices that can have their own lease.
func (p *Page) Leases() int {
	if p.version < 5 {
		return 0
	}
	return MaxLeases
}

func (p *Page) device(i int) LeaseSlot {
	i = min(max(i, 0), MaxLeases-1)
	return LeaseSlot{p, LeasesOffset + OffLeasesEntries + i*SizeOfLease, LeasesOffset + OffLeasesRecoveredEpochs + i*8}
}

// DeviceLease assigns lease i to a device. Preconditions: the lease has had no epoch.
func (p *Page) DeviceLease(i int, gpu model.DeviceID) LeaseSlot {
	l := p.device(i)
	store32(p.mem, l.epoch+OffLeasePCIDomain, uint32(gpu>>16))
	store32(p.mem, l.epoch+OffLeasePCIBusSlot, uint32(gpu&0xffff))
	return l
}

// WriteLease publishes a new suspension and its deadline. The deadline goes first, so that a client
// that sees the new epoch sees its deadline too.
func (l LeaseSlot) WriteLease(epoch uint64, deadline model.Time) {
	l.WriteLeaseDeadline(deadline)
	store64(l.page.mem, l.epoch, epoch)
}

// WriteLeaseDeadline moves the newest suspension's deadline; 0: nothing is suspended.
func (l LeaseSlot) WriteLeaseDeadline(deadline model.Time) {
	store64(l.page.mem, l.epoch+8, uint64(deadline))
}

// RecoveredEpoch returns the newest suspension that the client reports as undone.
func (l LeaseSlot) RecoveredEpoch() uint64 { return load64(l.page.mem, l.recovered) }

// read returns epoch and deadline, epoch first, because the daemon writes the epoch last.
func (l LeaseSlot) read() (epoch uint64, deadline model.Time) {
	epoch = load64(l.page.mem, l.epoch)
	return epoch, model.Time(load64(l.page.mem, l.epoch+8))
}

// WriteLease publishes a suspension under the shared lease.
func (p *Page) WriteLease(epoch uint64, deadline model.Time) { p.shared().WriteLease(epoch, deadline) }

// WriteLeaseDeadline moves the shared lease's deadline.
func (p *Page) WriteLeaseDeadline(deadline model.Time) { p.shared().WriteLeaseDeadline(deadline) }

// RecoveredEpoch returns the newest suspension under the shared lease that the client reports as
// undone.
func (p *Page) RecoveredEpoch() uint64 { return p.shared().RecoveredEpoch() }

// Lease reads the shared lease.
func (c ClientPage) Lease() (epoch uint64, deadline model.Time) { return c.shared().read() }

// SetRecovered reports that every suspension under the shared lease up to epoch was undone. The count
// goes first: a daemon that sees the epoch sees it counted.
func (c ClientPage) SetRecovered(epoch uint64) {
	store64(c.mem, OffHeaderRecoveries, load64(c.mem, OffHeaderRecoveries)+1)
	store64(c.mem, OffHeaderRecoveredEpoch, epoch)
}

// DeviceLeases calls f for each lease of a device that has had a suspension.
func (c ClientPage) DeviceLeases(f func(i int, gpu model.DeviceID, epoch uint64, deadline model.Time)) {
	for i := range c.Leases() {
		l := c.device(i)
		epoch, deadline := l.read()
		if epoch == 0 {
			continue
		}
		gpu := model.DeviceID(load32(c.mem, l.epoch+OffLeasePCIDomain))<<16 | model.DeviceID(load32(c.mem, l.epoch+OffLeasePCIBusSlot)&0xffff)
		f(i, gpu, epoch, deadline)
	}
}

// SetDeviceRecovered reports that every suspension under lease i up to epoch was undone.
func (c ClientPage) SetDeviceRecovered(i int, epoch uint64) {
	store64(c.mem, OffHeaderLeaseRecoveries, load64(c.mem, OffHeaderLeaseRecoveries)+1)
	store64(c.mem, c.device(i).recovered, epoch)
}
