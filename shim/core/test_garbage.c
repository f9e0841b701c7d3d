// SPDX-License-Identifier: Apache-2.0
//
// A daemon that talks nonsense ends its session and nothing else.

#include "test_support.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;

static bool client_hangs_up(void) {
  char byte;
  ssize_t got;
  while (test_readable(d->socket, 3000)) {
    got = recv(d->socket, &byte, 1, MSG_DONTWAIT);
    if (got <= 0) return true;
  }
  return false;
}

static void bad_welcome(int what) {
  test_daemon_accept(d);
  test_daemon_make_page(d, 50);
  struct xsw_welcome welcome = test_welcome(50);
  int fds[4] = {d->memfd, d->doorbell, d->memfd, d->doorbell}, made = -1, pair[2];
  unsigned count = 2;
  size_t bytes = sizeof welcome;
  switch (what) {
  case 0: welcome.frame.magic++; break;
  case 1: welcome.frame.bytes++; break;
  case 2: bytes = 10; break;
  case 3: count = 0; break;
  case 4: count = 1; break;
  case 5: count = 4; break;
  case 6: welcome.page_bytes *= 2; break;
  case 7: fds[0] = d->doorbell; break;
  case 8: fds[1] = d->memfd; break;
  case 9: welcome.session_id++; break;
  case 10: test_header(d)->magic = 0; break;
  case 11: test_header(d)->version++; break;
  case 12: welcome.frame.version++; break;
  case 13: welcome.frame.type = 77; break;
  case 14: // not sealed
    made = fds[0] = memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(made, XSW_PAGE_BYTES) == 0);
    break;
  case 15: // too short
    made = fds[0] = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(made, 4096) == 0);
    CHECK(fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    break;
  case 16: // a doorbell that blocks
    made = fds[1] = eventfd(0, EFD_CLOEXEC);
    break;
  case 17: // a doorbell that raises SIGPIPE
    CHECK(pipe2(pair, O_CLOEXEC | O_NONBLOCK) == 0);
    close(pair[0]);
    made = fds[1] = pair[1];
    break;
  case 18: // can't be mapped for writing
    made = fds[0] = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(made, XSW_PAGE_BYTES) == 0);
    CHECK(pwrite(made, d->page, sizeof(struct xsw_header), 0) > 0);
    CHECK(fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
    break;
  }
  test_send(d->socket, &welcome, bytes, fds, count);
  CHECK(client_hangs_up());
  CHECK(!xsi_page_joined() && xsi_header()->magic == 0);
  test_set_busy(0, true);
  test_set_busy(0, false);
  test_daemon_hang_up(d);
  test_daemon_drop_page(d);
  if (made >= 0) close(made);
}

static void garbage_ends_only_the_session(void) {
  for (int what = 0; what <= 18; what += 1)
    bad_welcome(what);
  unsigned char noise[XSW_FRAME_MAX_BYTES * 2];
  unsigned seed = 1;
  for (size_t i = 0; i < sizeof noise; i++)
    noise[i] = (unsigned char)rand_r(&seed);
  test_session_start(d, 60);
  test_send(d->socket, noise, sizeof noise, NULL, 0); // longer than any frame, while joined
  CHECK(client_hangs_up());
  test_session_end(d);
  test_session_start(d, 61);
  struct xsw_welcome welcome = test_welcome(61);
  test_send(d->socket, &welcome, sizeof welcome, NULL, 0); // twice
  CHECK(client_hangs_up());
  test_session_end(d);
}

int main(void) {
  test_daemon_place(d);
  xsi_options_init(); // the constructor ran before the socket was named
  alarm(60);
  xsi_session_retry.first_ms = xsi_session_retry.last_ms = xsi_session_retry.refused_ms = 10;
  test_daemon_listen(d);
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
  test_session_start(d, 1);
  test_session_end(d);
  unsigned fds = test_count_fds();
  garbage_ends_only_the_session();
  test_session_start(d, 70);
  test_session_end(d);
  EVENTUALLY(test_count_fds() <= fds); // the first count may include a closing socket
  CHECK(test_count_helpers() == 1);
  test_daemon_remove(d);
  puts("ok garbage");
  return 0;
}
