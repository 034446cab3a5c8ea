"""What was wrong with the published labels, and what is known and left, as LABELS.md says."""

import ale_py
import numpy as np
import numpy.typing as npt
import pytest

from rl_infonce.atari import to_pixels
from tests.atari.emulators import NOOP, Bytes, byte, decimal, emulator, sightings, stops

A = ale_py.Action
pytestmark = pytest.mark.atari


def test_the_published_direction_of_frostbite_is_the_joystick() -> None:
    stopped, published = stops("frostbite"), byte("frostbite", "player_direction", "atariari2021")
    held = {A.LEFT: 0b1011, A.RIGHT: 0b0111, A.UP: 0b1110, A.DOWN: 0b1101, NOOP: 0b1111}
    for action, wires in held.items():
        assert {int(stopped.after(k, action, 2)[published]) for k in range(0, 60, 6)} == {wires}
    # the corrected one turns the picture of the player, who is 8 wide and 18 high
    corrected, flips = byte("frostbite", "player_direction"), 0
    for state in range(0, 60, 6):
        x = to_pixels([stopped.ram[state, byte("frostbite", "player_x")]], "frostbite", "player_x")
        assert x is not None
        for box in sightings(stopped, state, corrected, corrected, [0, 8], n_frames=1):
            assert abs(np.mean(box.x) - x[0]) <= 2
            assert np.ptp(box.y) < 18
            flips += 1
    assert flips >= 3


def test_the_agent_of_tennis_changes_sides_and_the_bytes_do_not() -> None:
    stopped = stops("tennis")
    pairs = [
        [byte("tennis", f"{side}_player_{axis}") for axis in "xy"] for side in ("upper", "lower")
    ]
    for side in (0, 1):  # kept in byte 80
        mine, yours = pairs[side], pairs[1 - side]
        moved = {"mine": 0, "yours": 0}
        for state in np.flatnonzero(stopped.ram[:, 80] == side)[::2]:
            still = stopped.after(state, NOOP, 10)
            up = stopped.after(state, A.UP, 10)
            moved["mine"] += int((up != still)[mine].any())
            moved["yours"] += int((up != still)[yours].any())
        assert moved["mine"] >= 3
        assert moved["yours"] == 0
    upper, lower = (
        to_pixels(stopped.ram[:, pair[1]], "tennis", f"{side}_player_y")
        for side, pair in zip(("upper", "lower"), pairs, strict=True)
    )
    assert upper is not None
    assert lower is not None
    assert max(upper) < min(lower)


def test_the_ball_of_tennis_is_its_height_above_its_shadow() -> None:
    ram = stops("tennis").ram.astype(np.int64)
    height = ram[:, byte("tennis", "ball_y")] - ram[:, 55]
    off = height - ram[:, byte("tennis", "ball_height")]
    assert (np.abs((off + 128) % 256 - 128) <= 2).all()
    assert len(set(ram[:, byte("tennis", "ball_height")])) > 10


@pytest.mark.parametrize(
    ("game", "name"),
    [
        ("pong", "player_x"),
        ("pong", "enemy_x"),
        ("berzerk", "enemy_evilOtto_x"),
        ("berzerk", "enemy_robots_y_8"),
    ],
)
def test_what_is_left_out_never_varies(game: str, name: str) -> None:
    stopped, place = stops(game), byte(game, name, "atariari2021")
    constant = set(stopped.ram[:, place])
    assert len(constant) == 1
    for state in range(0, 60, 6):
        stopped.written(state, place, 100)
        after = int(stopped.ale.getRAM()[place])
        # Pong puts its own value back at once; in Berzerk there is nothing to be moved
        assert {after} == constant or not sightings(stopped, state, place, place, [60, 100, 110])


def test_writing_the_published_missile_of_space_invaders_moves_nothing() -> None:
    stopped, place = stops("space_invaders"), byte("space_invaders", "missiles_y", "atariari2021")
    assert len(set(stopped.ram[:, place])) > 3
    for state in range(0, 60, 6):
        assert not sightings(stopped, state, place, place, [30, 60, 90])


def test_the_invaders_descend_by_the_corrected_byte_only() -> None:
    ale, published, corrected = emulator("space_invaders"), [], []
    for step in range(700):
        for _ in range(4):
            ale.act(NOOP)
        if step >= 60:
            published.append(ale.getRAM()[byte("space_invaders", "enemies_y", "anand2019")])
            corrected.append(ale.getRAM()[byte("space_invaders", "enemies_y")])
    assert (np.diff(np.array(corrected, np.int64)) >= 0).all()
    assert corrected[-1] > corrected[0]
    assert (np.diff(np.array(published, np.int64)) < 0).any()


def test_the_published_ship_of_demon_attack_is_its_missile() -> None:
    stopped = stops("demon_attack")
    for version, height in (("atariari2021", 8), ("corrected", 12)):
        place, found = byte("demon_attack", "player_x", version), []
        for state in range(0, 60, 6):
            found += sightings(stopped, state, place, place, [0x35, 0x85], n_frames=1)
        tall = [int(np.ptp(box.y)) + 1 for box in found]
        assert np.median(tall) == height


def test_the_last_digit_of_breakout_is_an_index_into_pictures() -> None:
    stopped = stops("breakout")
    shown = stopped.ram[:, byte("breakout", "score_last_digit")]
    assert stopped.score.max() > 1
    np.testing.assert_array_equal(shown, 5 * (stopped.score % 10))


def test_the_gates_of_skiing_are_counted_down_from_20() -> None:
    ale, seen = emulator("skiing"), []
    for _ in range(600):
        ale.act(NOOP)
        seen.append(int(decimal(ale.getRAM()[byte("skiing", "gates_left_count")])))
    assert seen[-1] < 20
    assert set(np.diff(seen[10:])) == {0, -1}
    assert seen[10] == 20


def test_the_papers_lives_of_space_invaders_are_not() -> None:
    stopped, place = stops("space_invaders"), byte("space_invaders", "num_lives", "anand2019")
    assert len(set(stopped.lives - stopped.ram[:, place])) > 2


def screen_after(ale: ale_py.ALEInterface, writes: dict[int, int]) -> Bytes:
    """Write bytes, return the screen [height, width, 3] a frame later, and undo all."""
    state = ale.cloneSystemState()
    for place, value in writes.items():
        ale.setRAM(place, value)
    ale.act(NOOP)
    screen = ale.getScreenRGB()
    ale.restoreSystemState(state)
    return screen


def box(where: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return the first and last row, and the first and last column, of True pixels."""
    ys, xs = np.nonzero(where)
    return int(ys.min()), int(ys.max()), int(xs.min()), int(xs.max())


def montezuma() -> ale_py.ALEInterface:
    ale = emulator("montezuma_revenge")
    for _ in range(120):
        ale.act(NOOP)
    return ale


def test_the_published_items_and_room_of_montezuma_are_the_picture_of_the_skull() -> None:
    ale = montezuma()
    mirrored, picture = (
        byte("montezuma_revenge", name, "atariari2021")
        for name in ("items_in_inventory_count", "room_state")
    )
    assert mirrored == byte("montezuma_revenge", "enemy_skull_mirrored")
    assert picture == byte("montezuma_revenge", "enemy_skull_picture")
    left = 31 + int(ale.getRAM()[byte("montezuma_revenge", "enemy_skull_x")])
    skull = (slice(166, 179), slice(left, left + 8))
    one, other = (screen_after(ale, {mirrored: value}) for value in (0, 8))
    assert (one != other).any()
    np.testing.assert_array_equal(one[skull], other[skull][:, ::-1])
    pictures = [screen_after(ale, {picture: value}) for value in range(16)]
    assert len({each[skull].tobytes() for each in pictures}) == 9
    for screen in (one, other, *pictures):
        screen[skull] = 0
        np.testing.assert_array_equal(screen, one)


def test_the_inventory_of_montezuma_has_a_bit_per_item() -> None:
    ale, inventory = montezuma(), byte("montezuma_revenge", "inventory")
    empty = screen_after(ale, {inventory: 0})
    np.testing.assert_array_equal(empty, screen_after(ale, {}))
    for bit in range(8):  # below the lives
        top, bottom, left, right = box((screen_after(ale, {inventory: 1 << bit}) != empty).any(-1))
        assert (top, left) == (28, 56)
        assert bottom <= 42
        assert right <= 62
    assert box((screen_after(ale, {inventory: 3}) != empty).any(-1)) == (28, 42, 56, 69)
    ale.setRAM(byte("montezuma_revenge", "player_x"), 14)
    ale.setRAM(byte("montezuma_revenge", "player_y"), 195)
    before = ale.getRAM()[[61, 62]].tolist()
    assert ale.act(NOOP) == 100  # for the key
    assert ale.getRAM()[inventory] == 2
    assert ale.getRAM()[[61, 62]].tolist() == before


def pixels_of(ale: ale_py.ALEInterface, colour: tuple[int, int, int]) -> npt.NDArray[np.bool_]:
    """Return where the screen below the score has a colour."""
    found: npt.NDArray[np.bool_] = (ale.getScreenRGB() == colour).all(-1)
    found[:30] = False
    return found


def test_the_green_column_of_qbert_counts_down_to_the_next_green_enemy() -> None:
    green, ale = (50, 132, 50), emulator("qbert")
    place = byte("qbert", "green_enemy_column", "atariari2021")
    before = 1
    while ale.getRAM()[place] != 6:
        before = int(ale.getRAM()[place])
        ale.act(NOOP)
    assert before == 1
    entered, seen = ale.cloneSystemState(), []
    for frame in range(350):
        if frame % 64 == 16 and frame < 300:
            seen.append((box(pixels_of(ale, green))[2], int(ale.getRAM()[place])))
        ale.act(NOOP)
    # where cubes of the columns 6 to 2 are
    assert seen == [(90, 6), (74, 5), (62, 4), (50, 4), (38, 4)]
    assert not pixels_of(ale, green).any()
    assert ale.getRAM()[place] == 4
    ale.restoreSystemState(entered)
    ale.setRAM(place, 1)
    for _ in range(80):
        ale.act(NOOP)
    assert ale.getRAM()[place] == 6
    # the old one in column 5 and a new one in column 6
    assert box(pixels_of(ale, green)) == (42, 87, 74, 97)


def test_the_purple_snake_of_qbert_follows_the_byte_of_its_column() -> None:
    ale, place = emulator("qbert"), byte("qbert", "snake_column")
    lefts = {3: 50, 4: 62, 5: 74}
    for _ in range(728):  # the snake has hatched
        ale.act(NOOP)
    hatched, seen = ale.cloneSystemState(), set()
    for written in (4, 5):
        ale.restoreSystemState(hatched)
        ale.setRAM(place, written)
        for frame in range(300):
            ale.act(NOOP)
            if frame in (110, 180, 240):  # it rests between hops
                column = int(ale.getRAM()[place])
                assert box(pixels_of(ale, (146, 70, 192)))[2] == lefts[column]
                seen.add(column)
    assert seen == set(lefts)


def test_six_bytes_of_bricks_of_breakout_have_no_label() -> None:
    ale = emulator("breakout")
    for _ in range(40):  # bricks are laid one byte a frame
        ale.act(NOOP)
    labelled = {byte("breakout", f"block_bit_map_{number}") for number in range(30)}
    assert labelled == set(range(30))
    whole = screen_after(ale, {})
    for row, place in enumerate(range(30, 36)):
        top = 87 - 6 * row
        without = screen_after(ale, {place: 0})
        assert box((without != whole).any(-1)) == (top, top + 5, 8, 15)
